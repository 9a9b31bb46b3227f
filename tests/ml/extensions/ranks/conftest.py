"""Fixtures of ranks on other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extensions.ranks.ssh_servers import start_ssh_server  # noqa: F401
from tests.ml.training.conftest import trainings, two_files  # noqa: F401


@pytest.fixture(scope="session")
def rank_code(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Code for ranks that reduce nothing: their agents import an empty Horovod, in none of TensorFlow's seconds."""
    empty = tmp_path_factory.mktemp("empty")
    (empty / "horovod").mkdir()
    for name in ("__init__", "tensorflow"):
        (empty / "horovod" / f"{name}.py").touch()
    return str(Path(__file__).parent), str(empty)
