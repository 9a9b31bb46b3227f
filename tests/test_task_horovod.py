"""``@task.horovod``, and scripts as tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import StepFailed
from airflow_hops.core.steps.run_record import read_record
from airflow_hops.core.training.record import id_of_record, read_training, trainings_uri
from airflow_hops.web.runs.provenance import code_files

pytestmark = pytest.mark.runtime
STEPS = (str(Path(__file__).parent / "steps"),)
ENTRY = "airflow_hops.ml.training.stage:run"


@pytest.fixture(scope="module")
def tracking_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('tracking')}/mlflow.db"


@pytest.fixture(scope="module")
def returned(
    shared_run_step: Any,
    warm_launcher: Any,
    transformed_examples: Artifact,
    run_dag: Any,
    tracking_uri: str,
    boosted_runtime: Path,
) -> Iterator[dict[str, Any]]:
    """Returns the results of the DAG's tasks; one of them ran in a named environment."""
    extra = {"store": shared_run_step.store.root, "tracking_uri": tracking_uri}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
        patch.setenv("AIRFLOW__HOPS__RUNTIME", str(boosted_runtime))
        run = run_dag("task_horovod", {"examples": transformed_examples.to_dict(), "lr": 0.01})
        assert str(run.state) == "success"
        yield {ti.task_id: ti.xcom_pull(task_ids=ti.task_id) for ti in run.get_task_instances()}


def _training(shared_run_step: Any, model: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    folder = shared_run_step.store.local(Artifact.from_dict(model))
    return folder, json.loads((folder / "training.json").read_text())


def test_dag_function_trains_a_model(
    shared_run_step: Any, transformed_examples: Artifact, returned: dict[str, Any]
) -> None:
    model = returned["train"]
    folder, training = _training(shared_run_step, model)
    assert model["kind"] == "model"
    assert model["properties"]["synchronized"] is True
    assert training["params"] == {"lr": 0.05}
    numbers = {"train_loss", "eval_loss", "examples_per_second", "scaling_efficiency", "seconds"}
    assert set(model["metrics"]) == numbers, "JSON has no NaN"
    assert (training["train"], training["ranks"]) == ("train()", 2)
    assert (folder / "saved_model" / "saved_model.pb").exists()
    lineage = shared_run_step.store.manifest(model["uri"]).inputs
    assert [artifact.fingerprint for artifact in lineage["examples"]] == [transformed_examples.fingerprint]


def test_lightgbm_trains_in_named_environment(
    shared_run_step: Any, transformed_examples: Artifact, returned: dict[str, Any]
) -> None:
    model = Artifact.from_dict(returned["boost"])
    properties = ModelProperties.of(model)
    assert (properties.format, properties.framework, properties.synchronized) == ("onnx", "lightgbm", True)
    assert properties.library_versions is not None and {"lightgbm", "onnxmltools"} <= set(properties.library_versions)
    folder, training = _training(shared_run_step, returned["boost"])
    assert training["params"] == {"leaves": 7} and training["model"]["largest_difference"] < 1e-3
    assert {"model.onnx", "signature.json", "transform_graph"} <= {path.name for path in (folder / "onnx").iterdir()}
    lineage = shared_run_step.store.manifest(model.uri)
    assert [artifact.fingerprint for artifact in lineage.inputs["examples"]] == [transformed_examples.fingerprint]
    other = shared_run_step.store.manifest(returned["script"]["uri"])
    assert lineage.cache_key_parts["runtime"] != other.cache_key_parts["runtime"], "another environment, another key"


def test_a_plain_value_is_returned_from_rank_0(returned: dict[str, Any]) -> None:
    assert returned["add_up"] == {"sum": 10, "size": 2}


def test_tf_keras_script_runs_unchanged(shared_run_step: Any, returned: dict[str, Any]) -> None:
    model = returned["script"]
    folder, training = _training(shared_run_step, model)
    assert training["train"] == "horovod_script.py"
    assert model["properties"]["synchronized"] is True
    assert (folder / "saved_model" / "saved_model.pb").exists()
    for rank in (0, 1):
        assert f"rank {rank} of 2 has trained with tf_keras" in (folder / "logs" / f"rank-{rank}.log").read_text()


def test_records_of_trainings_have_code_libraries_and_states(shared_run_step: Any, returned: dict[str, Any]) -> None:
    store = shared_run_step.store
    ids = filter(None, map(id_of_record, store.names(trainings_uri(store, "task_horovod"))))
    trainings = {run.task_id: run for each in ids if (run := read_training(store, "task_horovod", each))}
    steps = {name: read_record(store, "task_horovod", run.record) for name, run in trainings.items() if run.record}
    code = {name: set(code_files(store, step)) for name, step in steps.items()}
    assert code == {
        "train": {"<train>.py"},
        "boost": {"<boost>.py"},
        "add_up": {"<add_up>.py"},
        "script": {"horovod_script.py"},
    }
    tags = trainings["boost"].tags
    assert tags["hops.runtime"] == "boosted" and "lightgbm==" in tags["hops.runtime_packages"]
    states = {name: run.status for name, run in trainings.items()}
    assert states == dict.fromkeys(returned, "FINISHED"), "that of the task which returned a plain value, too"


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"script": "no_such.py"}, "script 'no_such.py': there is no such file on the step's path"),
        ({"script": "script_without_model.py"}, "made no model: neither a keras.Model in its global 'model' (found"),
        ({"script": "script_that_exits.py"}, "script 'script_that_exits.py' ended itself by sys.exit(3)"),
        ({"train": "training_functions:build_nothing"}, "has no function 'build_nothing'"),
        ({"train": "training_functions:without_context"}, "cannot be called as train(context)"),
    ],
)
def test_unrunnable_code_is_reported_and_not_retried(
    shared_run_step: Any, warm_launcher: Any, params: dict[str, Any], expected: str
) -> None:
    with pytest.raises(StepFailed) as failure:
        shared_run_step(ENTRY, params=params, kind="model", code_paths=STEPS, launcher=warm_launcher)
    assert expected in str(failure.value)
    assert not failure.value.retryable
    assert not shared_run_step.store.exists(shared_run_step.last_uri)


def test_own_saved_model_is_not_synchronized(shared_run_step: Any, warm_launcher: Any) -> None:
    model = shared_run_step(
        ENTRY, params={"script": "script_that_saves.py"}, kind="model", code_paths=STEPS, launcher=warm_launcher
    )
    folder, training = _training(shared_run_step, model.to_dict())
    assert (folder / "saved_model" / "saved_model.pb").exists()
    assert model.properties["synchronized"] is False
    assert training["params"] == {}
