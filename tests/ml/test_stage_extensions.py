"""Stages of other distributions, and the contract tests that their authors run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.extensions import OWN, STAGES, extensions
from airflow_hops.core.processes.programs import with_package
from airflow_hops.ml.step.context import resolve
from airflow_hops.testing.stages import StageContract

sys.path.append(str(Path(__file__).resolve().parents[1]))

from example_extensions import write_distribution

ENTRY_POINTS = "[airflow_hops.stages]\ndoubled = example_stage:run\nbroken = example_stage:walk\n"


@pytest.fixture(autouse=True)
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    write_distribution(tmp_path / "site", "hops-example", ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    sys.modules.pop("example_stage", None)


class TestStageOfAnotherDistribution(StageContract):
    name = "doubled"
    output_kind = "doubled"

    def test_stage_takes_params(self, run: Any) -> None:
        assert run(factor=3).value["metrics"] == {"doubled": 63.0}
        assert run(factor=-1).error == "factor is -1, expected 0 or more"


def test_imports_of_all_stages_start_no_threads() -> None:
    """The warm process imports them and forks."""
    modules = {stage.value.partition(":")[0] for stage in extensions(STAGES).values() if stage.distribution == OWN}
    program = f"""
import contextlib, importlib, threading
for module in {sorted(modules)}:
    with contextlib.suppress(ImportError):
        importlib.import_module(module)
print(threading.active_count())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=with_package(os.environ))
    assert done.stdout.split()[-1:] == ["1"], done.stderr


def test_broken_stage_names_its_distribution() -> None:
    with pytest.raises(BadInput, match="'broken' = 'example_stage:walk' of the distribution 'hops-example' cannot be"):
        resolve("example_stage:walk")
