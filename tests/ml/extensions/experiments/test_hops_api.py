"""The package ``hops``: the calls of programs that were written for hops-util-py."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.experiments.core.studies import StudyFolder, study_folder
from airflow_hops.extensions.experiments.ml.project import STORE_VARIABLE
from airflow_hops.ml.__main__ import run_step


def folders(path: str) -> list[str]:
    return sorted(each.name for each in Path(path).iterdir() if each.is_dir())


def record(path: str) -> dict[str, Any]:
    return json.loads((Path(path) / "experiment.json").read_text())


def parallel_experiments() -> Any:
    from hops import tensorboard, tflauncher, util

    def model(learning_rate: float, dropout: float) -> None:
        import tensorflow as tf

        with tf.summary.create_file_writer(tensorboard.logdir()).as_default():
            tf.summary.scalar("loss", learning_rate * dropout, step=0)

    args_dict = {"learning_rate": [0.001, 0.0005], "dropout": [0.45, 0.7]}
    args_dict_grid = util.grid_params(args_dict)
    spark = None
    return args_dict_grid, tflauncher.launch(spark, model, {name: each[:2] for name, each in args_dict_grid.items()})


@pytest.mark.slow
def test_parallel_experiments_leave_a_folder_each(as_step: Any, store: ArtifactStore, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    tracking = f"sqlite:///{tmp_path}/mlflow.db"
    grid, path = as_step(parallel_experiments, services={"tracking_uri": tracking})
    assert grid == {"learning_rate": [0.001, 0.001, 0.0005, 0.0005], "dropout": [0.45, 0.7] * 2}
    assert path == f"{tmp_path}/store/Experiments/tests@one@explore/run.1"
    folders = {each.name: each for each in Path(path).iterdir() if each.is_dir()}
    assert set(folders) == {f"learning_rate=0.001.dropout={d}" for d in (0.45, 0.7)}
    for folder in folders.values():
        assert list(folder.glob("events.out.*")) and (folder / "training.json").is_file(), list(folder.iterdir())
    assert "tensorflow==" in (Path(path) / "requirements.txt").read_text()
    result = record(path)
    assert result["status"] == "FINISHED" and result["function"] == "launch" and result["metric"] is None
    assert result["_id"] == "tests@one@explore.run.1" and result["finished"] > result["started"]
    states = [trial.state for trial in study_folder(store, "tests", "explore", result["study"]).trials()]
    assert states == ["complete"] * 2
    client = MlflowClient(tracking)
    runs = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    nested = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert {run.data.params["dropout"] for run in nested} == {"0.45", "0.7"} and len(nested) == 2
    assert len(runs) == 3


def searches() -> Any:
    import numpy as np
    from hops import experiment

    def bowl(x: float, y: float) -> float:
        return -((x - 3) ** 2) - (y - 1) ** 2

    def named(x: float) -> dict[str, float]:
        return {"loss": abs(x - 4), "other": 1.0}

    bounds = {"x": [0.0, 5.0], "y": np.array([0, 4])}
    return (
        experiment.grid_search(bowl, {"x": [1, 3], "y": [0, 1]}, direction="max"),
        experiment.grid_search(
            map_fun=named, args_dict={"x": [1, 5]}, direction=experiment.Direction.MIN, optimization_key="loss"
        ),
        experiment.random_search(bowl, bounds, samples=3),
        experiment.differential_evolution(bowl, bounds, "max", 2, 4, 0.5, 0.7, False, "evolved"),
    )


@pytest.mark.slow
def test_searches_return_path_best_parameters_and_value(as_step: Any) -> None:
    grid, named, drawn, evolved = as_step(searches)
    assert grid[1:] == ({"x": 3, "y": 1}, {"metric": 0})
    assert named[1:] == ({"x": 5}, {"loss": 1, "other": 1.0})
    assert record(grid[0])["hyperparameter"] == "x=3.y=1" and record(grid[0])["metric"] == 0
    for result, count in ((drawn, 3), (evolved, 8)):
        path, best, returned = result
        assert isinstance(best["y"], int) and returned["metric"] == -((best["x"] - 3) ** 2) - (best["y"] - 1) ** 2
        values = [json.loads(f.read_text())["value"] for f in Path(path).glob("*/training.json")]
        assert len(values) == count and max(values) == returned["metric"]
    assert [Path(path).name for path, *_ in (grid, named, drawn, evolved)] == ["run.1", "run.2", "run.3", "run.4"]
    firsts = [next(Path(path).glob("*.0/training.json")) for path, *_ in (drawn, evolved)]
    # Each experiment has random numbers of its own.
    assert len({json.loads(first.read_text())["params"]["x"] for first in firsts}) == 2
    assert record(evolved[0])["name"] == "evolved"


def colliding() -> Any:
    from hops import experiment

    def score(layers: Any) -> float:
        return {"32 16": 1.0, "32_16": 2.0, "32/16": 3.0, 1: 4.0, "1": 5.0}[layers]

    def counted(combination: int) -> dict[str, Any]:
        return {"metric": combination, "seconds": float("nan"), "large": 10**400}

    return (
        experiment.grid_search(score, {"layers": ["32 16", "32_16", "32/16", 1, "1"]}, "min"),
        experiment.launch(counted, {"combination": [1, 1]}, name="experiment.json", metric_key="large"),
        experiment.launch(lambda: 2, name="experiment.json"),
        experiment.launch(lambda: 3, name="日" * 90),
    )


@pytest.mark.slow
def test_each_trial_has_its_own_folder(as_step: Any) -> None:
    (grid, best, returned), (_, both), (single, two), (_, three) = as_step(colliding)
    assert (best, returned) == ({"layers": "32 16"}, {"metric": 1.0})
    values = [json.loads((Path(grid) / name / "training.json").read_text())["value"] for name in folders(grid)]
    assert sorted(values) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [each["metric"] for each in both.values()] == [1, 1] and list(both) == ["combination=1.0", "combination=1.1"]
    assert two == {"metric": 2} and folders(single) == ["experiment.json.0"] and three == {"metric": 3}


def test_changed_closure_changes_function_identity() -> None:
    from airflow_hops.extensions.experiments.ml.program import identity

    def made(factor: Any, default: int = 1) -> Callable[[], Any]:
        def train(power: int = default) -> Any:
            return json.dumps(factor**power)

        return train

    class Trainer:
        def __init__(self, rate: float) -> None:
            self.rate = rate

        def __call__(self) -> float:
            return self.rate

    def ways(factor: Any, rate: float) -> list[Any]:
        bound = functools.partial(made, factor, default=2)
        return [made(factor), bound, functools.partial(made(3), factor), Trainer(rate), Trainer(rate).__call__]

    first, same, other = (list(map(identity, ways(*values))) for values in ((2, 0.5), (2, 0.5), (4, 0.25)))
    assert first == same and not set(first) & set(other) and identity(made(2, 2)) != first[0]
    assert identity(made(threading.Lock())) != identity(made(threading.Lock())) and identity(len) != identity(len)


def test_folder_belongs_to_one_program_or_task(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_hops.core.artifacts.artifact import Producer
    from airflow_hops.core.steps.protocol import StepSpec
    from airflow_hops.extensions.experiments.ml.project import Project
    from airflow_hops.extensions.experiments.ml.record import ExperimentFolder

    def claim(*producer: str) -> ExperimentFolder:
        return ExperimentFolder.claim(Project(StepSpec("x", "", store=store.root, producer=Producer(*producer))), 1)

    program = ("notebook", "interactive", "script")
    assert [claim(*program).run for _ in range(2)] == ["run.1", "run.2"]
    monkeypatch.setattr(ArtifactStore, "names", lambda *_: [])  # as it is for programs that look at once
    assert claim(*program).run == "run.3"
    monkeypatch.setattr(StudyFolder, "read", lambda folder: True if folder.uri.endswith("run.4") else None)
    assert claim(*program).run == "run.5"  # of run.4 there is a study, whose folder somebody has removed
    assert claim("b", "c", "d.t").seed != claim("b", "e", "d.t").seed
    store.remove_text(store.internal("Experiments", "b@c@d.t", "run.1", "experiment.json"))
    assert claim("b", "c", "d.t").is_new and not claim("b", "c", "d.t").is_new
    assert claim("b", "c.d", "t").is_new


def distributed_training() -> Any:
    import horovod.tensorflow as hvd
    import tensorflow as tf
    from hops import devices, experiment, hdfs, tensorboard

    def distributed_training() -> float:
        hvd.init()
        weight = tf.Variable(float(hvd.rank()))
        hvd.broadcast_variables([weight], root_rank=0)
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = (weight - hvd.rank()) ** 2
        weight.assign_sub(0.5 * tape.gradient(loss, [weight])[0])
        tf.train.Checkpoint(weight=weight).write(f"{tensorboard.logdir()}/checkpoint-{hvd.rank()}")
        assert devices.get_num_gpus() == len(tf.config.list_physical_devices("GPU"))
        return weight.numpy()

    def collective() -> float:
        model_dir = tensorboard.logdir()
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        Path(model_dir, "eval").mkdir(exist_ok=True)
        Path(model_dir, "eval", "done").touch()
        summed = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.5)))
        return float(summed)

    hdfs.dump('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "Jupyter/Experiment/inc.ipynb")
    notebook = hdfs.project_path() + "/Jupyter/Experiment/inc.ipynb"
    described = {"name": "inception", "description": "A inception example with hidden layers"}
    return (
        experiment.allreduce(distributed_training, versioned_resources=[notebook], **described),
        experiment.collective_all_reduce(collective),
    )


@pytest.mark.server
def test_distributed_training_keeps_checkpoints_and_notebook(as_step: Any) -> None:
    (path, returned), (collective, summed) = as_step(distributed_training)
    assert returned == {"metric": 0.5}  # the mean of the ranks' gradients, 0 and -2, from 0
    assert (Path(path) / "inception/checkpoint-0.index").is_file()
    assert (Path(path) / "inc.ipynb").is_file()
    result = record(path)
    assert result["name"] == "inception" and result["versioned_resources"] == ["inc.ipynb"]
    assert result["description"] == "A inception example with hidden layers" and result["executors"] == 2
    assert summed == {"metric": 3.0} and (Path(collective) / "no-name/eval/done").exists()


def notebook() -> Any:
    import pandas as pd
    from hops import allreduce, facets, hdfs

    cells = [
        "import horovod.tensorflow as hvd\nimport tensorflow as tf\nfrom hops import tensorboard",
        "def main(_):\n    hvd.init()\n    summed = hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum)\n"
        "    open(f'{tensorboard.logdir()}/summed-{hvd.rank()}', 'w').write(str(summed.numpy()))",
        "main(None)",
    ]
    code = [{"cell_type": "code", "metadata": {}, "source": each, "outputs": []} for each in cells]
    for cell in code:
        cell["execution_count"] = None
    spark_kernel = {"name": "pysparkkernel", "display_name": "PySpark", "language": ""}  # as Hopsworks writes it
    content = {"cells": code, "metadata": {"kernelspec": spark_kernel}, "nbformat": 4, "nbformat_minor": 4}
    hdfs.dump(json.dumps(content), "Jupyter/all_reduce.ipynb")
    spark = None
    path = allreduce.launch(spark, "hdfs:///Projects/flights/Jupyter/all_reduce.ipynb")
    data = pd.DataFrame({"Age": [39, 50], "Sex": ["Male", None]})
    facets.overview(data, data)
    facets.dive(data.to_json(orient="records"))
    return path


@pytest.mark.server
def test_a_notebook_trains_with_horovod(as_step: Any) -> None:
    path = Path(as_step(notebook))
    assert [(path / "all_reduce" / f"summed-{rank}").read_text() for rank in (0, 1)] == ["3.0", "3.0"]
    assert (path / "all_reduce.ipynb").is_file() and record(str(path))["function"] == "allreduce"


def parameter_server() -> Any:
    import tensorflow as tf
    from hops import experiment

    def train() -> float:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
        with strategy.scope():
            weight = tf.Variable(1.0)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        step = tf.function(lambda: weight.assign_add(1.0))
        for _ in range(4):
            coordinator.schedule(step)
        coordinator.join()
        return float(weight.numpy())

    return experiment.parameter_server(train)


@pytest.mark.server
def test_a_chief_trains_with_a_parameter_server(as_step: Any) -> None:
    path, returned = as_step(parameter_server)
    assert returned == {"metric": 5.0} and record(path)["executors"] == 4


def files() -> Any:
    import pandas as pd
    from hops import hdfs

    features = ["Age", "Sex"]
    hdfs.dump("39, Male\n50 ,?\n", "TestJob/data/census/adult.data")
    h = hdfs.get_fs()
    with h.open_file(hdfs.project_path() + "/TestJob/data/census/adult.data", "r") as trainFile:
        train_data = pd.read_csv(trainFile, names=features, sep=r"\s*,\s*", engine="python", na_values="?")
    hdfs.dump("", "copied/left")
    with pytest.raises(BadInput, match="overwrite=True"):
        hdfs.cp("TestJob/data", "hdfs:///Projects/census/copied")
    hdfs.cp("TestJob/data", "hdfs:///Projects/census/copied", overwrite=True)
    hdfs.rename("copied/census/adult.data", "copied/new/[a]*")
    hdfs.rename("copied/new/[a]*", "copied/adult")
    hdfs.delete("copied/new", recursive=True)
    for call in (hdfs.cp, hdfs.rename):
        with pytest.raises(FileNotFoundError, match=r"cop\*"):
            call("cop*", "none")
        with pytest.raises(BadInput, match="within the other"):
            call("copied", "copied/below")
    listed = hdfs.ls("copied", recursive=True), hdfs.glob("copied/a*"), hdfs.load("copied/adult")
    os.chdir(tempfile.mkdtemp())
    for content in ("1", "2"):
        hdfs.dump(content, f"source/{content}")
        local = Path(hdfs.copy_to_local("source", "local/below", project="any"))
        hdfs.copy_to_hdfs(str(local), "back")
        hdfs.delete(f"source/{content}")
    with hdfs.open_file("back/source/2", None, "rt") as file:
        assert file.read() == "2" and hdfs.glob("back/*", recursive=True) == [*hdfs.ls("back", True)]
    assert [each.name for each in local.iterdir()] == ["2"]
    text = hdfs.load("copied/adult").decode()
    errors = []
    for path in ("/etc/passwd", "../outside", "s3://elsewhere/x"):
        with pytest.raises(BadInput) as raised:
            hdfs.exists(path)
        errors.append(str(raised.value))
    with pytest.raises(BadInput, match="recursive"):
        hdfs.delete("copied")
    with pytest.raises(BadInput, match="project's root"):
        hdfs.delete("", recursive=True)
    hdfs.delete("copied", recursive=True)
    return train_data.isna().sum().to_dict(), listed, text, errors, hdfs.exists("copied")


@pytest.mark.slow
def test_project_files_are_in_the_store(as_step: Any, tmp_path: Path) -> None:
    missing, (listed, matching, content), text, errors, there = as_step(files)
    assert missing == {"Age": 0, "Sex": 1}
    root = f"{tmp_path}/store/copied"
    assert listed == [f"{root}/adult", f"{root}/census"] and matching == [f"{root}/adult"]
    assert content == text.encode() == b"39, Male\n50 ,?\n" and not there
    assert all("within the project" in error for error in errors), errors


@pytest.fixture
def memory_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a store in this process's memory, which a program uses that is not a step."""
    store = f"memory://hops-{uuid.uuid4().hex}"
    monkeypatch.setenv(STORE_VARIABLE, store)
    yield store
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(store.removeprefix("memory:/"), recursive=True)


def test_remote_addresses_start_with_the_project_path(memory_store: str) -> None:
    from airflow_hops.extensions.experiments.hops import hdfs

    hdfs.dump("39, Male", "data/adult")
    address = f"{memory_store}/data/adult"
    assert hdfs.ls("data") == hdfs.glob("data/*") == [f"{hdfs.project_path()}data/adult"] == [address]
    assert hdfs.load(hdfs.ls("data")[0]) == b"39, Male"
    for name in ("[d]*", "d", "dd"):
        hdfs.cp("data", f"copies/{name}")
    hdfs.rename("copies/[d]*/adult", "copies/[d]*/new/[a]*")
    hdfs.cp("copies/[d]*/new", "copies/dd", overwrite=True)
    hdfs.delete("copies/[d]*/new/[a]*")
    hdfs.delete("copies/[d]*", recursive=True)
    copies = f"{hdfs.project_path()}copies"
    assert hdfs.ls("copies", recursive=True) == [f"{copies}/{each}" for each in ("d", "d/adult", "dd", "dd/[a]*")]


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_missing_folders_are_created_for_files(
    where: str, memory_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_hops.extensions.experiments.hops import hdfs

    if where == "folder":
        monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / where))
    for number, open_it in enumerate((hdfs.open_file, hdfs.get_fs().open_file)):
        with open_it(f"new/{number}/a", "w") as file:
            file.write(b"one")
        with open_it(f"new/{number}/a", "rt") as file:
            assert file.read() == "one"
    with hdfs.open_file("other/b", "any", "wt") as file:
        file.write("two")
    hdfs.dump(b"three", hdfs_path="deep/er/c")
    hdfs.cp(src_hdfs_path="other/b", dest_hdfs_path="copies/of/b")
    hdfs.move("copies/of/b", dest="moved/to/b")
    hdfs.mkdir("made/too", "any")
    assert (hdfs.load(hdfs_path="moved/to/b"), hdfs.exists("copies/of/b", "any")) == (b"two", False)
    assert hdfs.isdir("made/too") or where == "memory"
    hdfs.rmr("moved", project="any")
    assert not hdfs.exists(hdfs_path="moved")


def _project(context: Any) -> str:
    from airflow_hops.extensions.experiments.ml.project import Project

    return Project.current().root


def test_project_of_a_step_ends_with_it(memory_store: str, tmp_path: Path) -> None:
    from airflow_hops.extensions.experiments.ml.project import Project

    ArtifactStore(str(tmp_path)).make()
    result = run_step(StepSpec("x", f"{__name__}:_project", store=str(tmp_path)))
    assert result.value == str(tmp_path) and Project.current().root == memory_store


def asked_to_end() -> None:
    from hops import experiment

    step = os.getpid()

    def end() -> None:
        os.kill(step, signal.SIGTERM)
        time.sleep(600)

    with pytest.raises(SystemExit):
        experiment.launch(end)


@pytest.mark.slow
def test_stopped_experiment_is_reported(as_step: Any, tmp_path: Path) -> None:
    as_step(asked_to_end)
    result = record(f"{tmp_path}/store/Experiments/tests@one@explore/run.1")
    assert (result["status"], result["error"]) == ("KILLED", "the step was asked to end") and result["finished"]


def failing() -> Any:
    from hops import experiment

    os.chdir(tempfile.mkdtemp())
    Path("experiment.json").touch()

    def fails(x: int) -> None:
        raise ValueError(f"no {x}")

    def silent(x: int) -> None:
        return None

    results = []
    for call in (
        lambda: experiment.launch(fails, {"x": [7]}),
        lambda: experiment.launch(fails),
        lambda: experiment.launch(fails, {"x": [1], "y": [1, 2]}),
        lambda: experiment.grid_search(silent, {"x": [1]}),
        lambda: experiment.grid_search(silent, {"x": []}),
        lambda: experiment.grid_search(silent, {"x": [1]}, direction="up"),
        lambda: experiment.random_search(silent, {"x": [1, 2, 3]}),
        lambda: experiment.launch(silent, {"x": [1]}, versioned_resources=["none.ipynb"]),
        lambda: experiment.differential_evolution(silent, {"x": [1, 2]}, population=3),
        lambda: experiment.differential_evolution(silent, {"x": [1, 2]}, mutation="0.5"),
        lambda: experiment.differential_evolution(silent, {"x": [1, 2]}, crossover=5),
        lambda: experiment.grid_search(silent, {"x": "sgd"}),
        lambda: experiment.random_search(silent, None),
        lambda: experiment.launch(silent, {"x": [1]}, name=5),
        lambda: experiment.launch(silent, {"x": [1]}, versioned_resources=["experiment.json"]),
        lambda: experiment.grid_search(lambda x: {"loss": x}, {"x": [1]}, optimization_key="seconds"),
    ):
        with pytest.raises(HopsError) as raised:
            call()
        results.append(str(raised.value))
    return results


@pytest.mark.slow
def test_unrunnable_experiment_is_refused(as_step: Any, tmp_path: Path) -> None:
    result = as_step(failing)
    expected = (
        "no 7",
        "cannot be called with no arguments",
        "'y': 2",
        "metric 'metric' was not reported",
        "space['x']",
        "direction is 'up'",
        "boundary_dict['x'] is [1, 2, 3]",
        "none.ipynb: no such file",
        "population is 3",
        "mutation is '0.5'",
        "crossover is 5",
        "args_dict['x'] is 'sgd'",
        "boundary_dict is None",
        "name is 5",
        "would be stored as experiment.json",
        "metric 'seconds' was not reported",
    )
    for error, words in zip(result, expected, strict=True):
        assert words in error, error
    first = record(f"{tmp_path}/store/Experiments/tests@one@explore/run.1")
    assert first["status"] == "FAILED" and "no 7" in first["error"]


def counted(version: int = 0) -> Any:
    from hops import experiment, hdfs, tensorboard

    from airflow_hops.extensions.experiments.ml.record import ExperimentFolder

    def count(x: int) -> int:
        Path(tensorboard.logdir(), f"version-{version}").touch()
        if x == 3 and not hdfs.exists("begun"):
            hdfs.dump("", "begun")
            raise ValueError("not yet")
        hdfs.dump("", f"called/{x}-{os.getpid()}")
        return x

    keep = ExperimentFolder.keep

    def away(folder: ExperimentFolder, name: str, output: Path) -> None:
        if name == "x=2" and not hdfs.exists("away"):
            hdfs.dump("", "away")
            raise OSError("the store is away")
        keep(folder, name, output)

    ExperimentFolder.keep = away  # type: ignore[method-assign]
    return experiment.launch(count, {"x": [1, 2, 3] if version == 0 else [1, 2]}, spark=OneExecutor())


class OneExecutor:
    def __init__(self) -> None:
        self.sparkContext = self

    def getConf(self) -> dict[str, str]:
        return {"spark.executor.instances": "1"}


def changed() -> Any:
    return counted(1)


@pytest.mark.slow
def test_retry_repeats_failed_calls(as_step: Any, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="away"):
        as_step(counted)
    with pytest.raises(HopsError, match="not yet"):
        as_step(counted)
    path, returned = as_step(counted)
    assert returned == {f"x={x}": {"metric": x} for x in (1, 2, 3)} and path.endswith("run.1")
    called = sorted(each.name.partition("-")[0] for each in (tmp_path / "store/called").iterdir())
    assert called == ["1", "2", "2", "3"]  # once more what could not be kept
    path, returned = as_step(changed)
    assert folders(path) == ["x=1", "x=2"]
    assert [each.name for each in Path(path).glob("*/version-*")] == ["version-1", "version-1"]


def stopped() -> Any:
    from hops import experiment, hdfs

    from airflow_hops.extensions.experiments.ml.project import Project

    project = Project.current()
    study = study_folder(project.store, "tests", "explore", "one.run.1")

    def stops(x: int) -> int:
        if x == 2 and not hdfs.exists("asked"):
            study.request_stop(None, "mallory")
            hdfs.dump("", "asked")
            time.sleep(60)
        return x

    return experiment.launch(stops, {"x": [1, 2, 3]}, spark=OneExecutor())


@pytest.mark.slow
def test_stopped_calls_leave_the_experiment_incomplete(as_step: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="2 of 3 calls have not ended: mallory stopped the search"):
        as_step(stopped)
    result = record(f"{tmp_path}/store/Experiments/tests@one@explore/run.1")
    assert result["status"] == "KILLED" and "mallory" in result["error"]
    path, returned = as_step(stopped)  # the task is cleared
    assert len(returned) == 3 and record(path)["trials"] == {"complete": 3}
