"""The environment with libtorrent, and organisations on addresses of the loopback interface."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from step_runner import warm_launcher_in

from airflow_hops.runner.runtime import RuntimeHook
from tests.extensions.sharing.organisations import Organisation, loopback


@pytest.fixture(scope="session")
def sharing_base(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A link to the runtime environment; beside it the environment ``sharing`` with libtorrent."""
    from uv import find_uv_bin

    from airflow_hops.core.errors import HopsError
    from airflow_hops.runner.environments.named import make_named
    from airflow_hops.runner.environments.runtime import pins_of

    base = tmp_path_factory.mktemp("runtimes") / "runtime"
    base.symlink_to(runtime)
    try:
        make_named(base, "sharing", ["libtorrent==2.1.1"], pins_of(base), uv=find_uv_bin())
    except HopsError as error:
        pytest.skip(f"libtorrent cannot be installed: {error}")
    return base


@pytest.fixture(scope="session")
def sharing_runtime(sharing_base: Path) -> Path:
    """The environment with libtorrent."""
    return sharing_base.with_name("runtime-sharing")


@pytest.fixture(scope="session")
def sharing_launcher(sharing_runtime: Path) -> Any:
    """Launches steps from a warm process of that environment."""
    return warm_launcher_in(Path(os.environ["AIRFLOW_HOME"], "warm-sharing"), sharing_runtime)


@pytest.fixture
def organisation(tmp_path: Path, sharing_runtime: Path) -> Iterator[Callable[..., Organisation]]:
    """Makes organisations, each with an address of the loopback interface."""
    made: list[Organisation] = []

    def make(name: str, **settings: Any) -> Organisation:
        home = tmp_path / name
        (home / "store").mkdir(parents=True)
        member = Organisation(name, home, loopback(len(made) + 1), sharing_runtime, **settings)
        made.append(member)
        return member

    yield make
    for each in made:
        each.end()


@pytest.fixture
def as_organisation(
    monkeypatch: pytest.MonkeyPatch, sharing_base: Path, sharing_launcher: Any
) -> Callable[[Organisation], None]:
    """Has this process's commands and operators use an organisation's store and keys."""
    monkeypatch.setattr(RuntimeHook, "warm_start", lambda hook: sharing_launcher.warm)

    def be(organisation: Organisation) -> None:
        extra = {"store": organisation.store.root, "runtime": str(sharing_base)}
        monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
        monkeypatch.setenv("AIRFLOW__HOPS__SHARING", str(organisation.folder.path))

    return be
