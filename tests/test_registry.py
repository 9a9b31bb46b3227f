"""MLflow's registry as deployments use it."""

from __future__ import annotations

import pytest
from served_models import EPOCHS, Pipeline
from world import refused

pytestmark = pytest.mark.runtime


def test_version_carries_lineage_and_its_run_the_parameters_and_metrics(pipeline: Pipeline) -> None:
    model = pipeline.model("first")
    pipeline.deploy(model, evaluation=pipeline.verdict("evaluation", model))
    (version,) = pipeline.registry("versions")
    lineage = {
        "hops.model": model.uri,
        "hops.fingerprint": model.fingerprint,
        "hops.statistics": model.properties["statistics"],
        "hops.schema": model.properties["schema"],
        "hops.dag_id": "tests",
        "hops.run_id": "run-1",
        "hops.task_id": "deploy",
    }
    facts = {"version": 1, "tags": lineage, "experiment": "tests", "run_status": "FINISHED"}
    assert facts.items() <= version.items() and lineage.items() <= version["run_tags"].items()
    assert version["source"].endswith("/artifacts/model")
    params = {
        "learning_rate": "0.001",
        "kind": "first",
        "features": '["carrier", "distance"]',
        "window": '["2013-01-01T00:00:00Z", "2013-04-01T00:00:00Z"]',
    }
    assert params.items() <= version["params"].items() and "epochs" not in version["params"]
    losses = [[number, epoch["loss"]] for number, epoch in enumerate(EPOCHS, 1)]
    metrics = {"loss": losses, "evaluation.auc": [[0, 0.71]], "model.auc": [[0, 0.7]]}
    assert metrics.items() <= version["metrics"].items()


@pytest.mark.parametrize("kind", ["first", "onnx"])
def test_mlflow_loads_the_champion_from_the_store(pipeline: Pipeline, kind: str) -> None:
    pipeline.deploy(pipeline.model(kind, problem="binary"))
    carriers = enumerate(["UA", "DL", "", "é"])
    rows = [{"carrier": carrier, "distance": 90.5 * n, "scheduled_at": n} for n, carrier in carriers]
    loaded = pipeline.registry("champion", rows=rows)
    status, served = pipeline.server.call(f"/v1/models/{pipeline.name}:predict", {"instances": rows})
    assert status == 200
    assert [row["probability"] for row in loaded["predictions"]] == pytest.approx(served["predictions"], abs=1e-6)
    assert {"carrier": "string", "distance": "double"}.items() <= loaded["inputs"].items()
    assert loaded["outputs"] == {"probability": "double"} and loaded["of_example"] == 1
    assert {"MLmodel", "requirements.txt", "input_example.json"} <= set(loaded["files"])
    assert loaded["bytes"] < 20_000  # a reference, not a copy


def test_interrupted_registration_is_continued(pipeline: Pipeline) -> None:
    model = pipeline.model("second")
    result = pipeline.runner(
        "ask_mlflow:register_twice",
        params={"tracking_uri": pipeline.tracking_uri, "model_name": pipeline.name},
        inputs={"model": model},
        code_paths=(__file__.rpartition("/")[0],),
        launcher=pipeline.launcher,
    )
    assert result == {"runs": 1, "versions": [1], "registered": [1, 1]}


def test_mlflow_server_that_does_not_answer_is_named(pipeline: Pipeline) -> None:
    with refused("MLflow at http://127.0.0.1:9 does not open", retried=True):
        pipeline.deploy(pipeline.model("first"), services={"tracking_uri": "http://127.0.0.1:9"})
    assert pipeline.name not in pipeline.server.config_file.read_text()


def test_training_record_that_is_not_json_is_named(pipeline: Pipeline) -> None:
    model = pipeline.model("third")
    (pipeline.store.local(model) / "training.json").write_text("{loss: 1}")
    with refused(r"training\.json: expected JSON"):
        pipeline.deploy(pipeline.store.accept_edit(model.uri, "training.json"))
