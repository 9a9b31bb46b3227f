"""Scores of tables: real SavedModels on real Spark, and a canary without a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from served_models import Pipeline

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.errors import BadInput, StepFailed
from airflow_hops.extensions.scoring import ScoreOperator
from airflow_hops.runner.launchers.spark import SparkLauncher

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

ROWS = {"train": 1000, "eval": 0}


@pytest.fixture
def predict(pipeline: Pipeline) -> Callable[..., Artifact]:
    """Runs the step on Spark, forked from the warm process."""
    launcher = SparkLauncher(pipeline.runner.runtime, "spark_local", {}, warm=pipeline.launcher.warm)

    def run(examples: Artifact, model: Artifact | None = None, launcher: Any = launcher, **params: Any) -> Artifact:
        artifact: Artifact = pipeline.runner(
            "airflow_hops.extensions.scoring.ml.stage:run",
            params=params,
            inputs={"examples": examples, **({"model": model} if model else {})},
            kind="predictions",
            services={"tracking_uri": pipeline.tracking_uri},
            launcher=launcher,
        )
        return artifact

    return run


def write_examples(pipeline: Pipeline, **columns: Any) -> Artifact:
    """Examples of two files in ``train``, one of them of two row groups, and no rows in ``eval``."""
    generator = np.random.default_rng(7)
    uri = pipeline.store.uri("training", "run", "prepare", "examples")
    with pipeline.store.create(uri, "examples", Producer("training", "run", "prepare")) as writer:
        for split, rows in ROWS.items():
            table = pa.table(
                {
                    "flight_id": [f"flight-{row}" for row in range(rows)],
                    "carrier": pa.array(["UA", None, "AA", "DL"] * (rows // 4), pa.string()),
                    "distance": generator.uniform(100, 899, rows),
                    "scheduled_at": np.arange(rows),
                    "late": np.arange(rows) % 2,
                    **{name: values[:rows] for name, values in columns.items()},
                }
            )
            (writer.path / split).mkdir()
            half = rows // 2
            pq.write_table(table.slice(0, half), writer.path / split / "part-00000.parquet", row_group_size=300)
            if rows:
                pq.write_table(table.slice(half), writer.path / split / "part-00001.parquet")
        return writer.commit(
            rows={split: RowCounts(rows, rows) for split, rows in ROWS.items()},
            properties={"splits": list(ROWS), "key": "flight_id", "label": "late", "time": "scheduled_at"},
        )


def read(pipeline: Pipeline, predictions: Artifact, split: str) -> Any:
    return pq.read_table(pipeline.store.local(predictions) / split).to_pandas()


def test_every_row_is_predicted_once_beside_requested_columns(
    pipeline: Pipeline, predict: Callable[..., Artifact]
) -> None:
    examples = write_examples(pipeline)
    model = pipeline.model("second", problem="binary", classes=["on time", "late"])
    result = predict(examples, model, columns=["flight_id", "late", "distance"], batch_rows=256)
    assert result.kind == "predictions"
    assert result.rows == {split: RowCounts(rows, rows) for split, rows in ROWS.items()}
    assert result.metrics == {"rows": 1000}
    assert result.properties["model"] == model.uri
    assert result.properties["outputs"] == {"probability": "float32"}
    assert (result.properties["problem"], result.properties["classes"]) == ("binary", ["on time", "late"])
    rows = read(pipeline, result, "train").set_index("flight_id")
    assert list(rows.columns) == ["late", "distance", "probability"]
    assert len(rows) == rows.index.nunique() == 1000
    expected = 1 / (1 + np.exp(1 - 1.2 * rows["distance"].astype("float32") / 1000))
    np.testing.assert_allclose(rows["probability"], expected, rtol=1e-5)
    empty = pq.read_table(pipeline.store.local(result) / "eval")
    assert (empty.num_rows, empty.schema.field("probability").type) == (0, pa.float32())
    assert not list(pipeline.store.local(result).glob("*/.part-*"))
    assert [a.uri for a in pipeline.store.manifest(result.uri).inputs["model"]] == [model.uri]
    assert any(line.progress is not None for line in pipeline.runner.lines)


def test_contradictory_arguments_are_named(pipeline: Pipeline, predict: Callable[..., Artifact]) -> None:
    examples = write_examples(pipeline)
    no_spark = pipeline.launcher
    cases = [
        ({"signature": "classify"}, "there is no signature 'classify'; there are serving_default"),
        ({"columns": ["plane"]}, "there is no column 'plane', which columns name"),
        (
            {"columns": ["late", "late"]},
            "columns is ['late', 'late']; expected a list of names, each once",
        ),
        ({"splits": []}, "splits is []; expected at least one, or None for all"),
        ({"splits": "train"}, "splits is 'train'; expected a list of names, each once"),
    ]
    model = pipeline.model("first")
    for params, message in cases:
        with pytest.raises(StepFailed) as caught:
            predict(examples, model, launcher=no_spark, **params)
        assert message in str(caught.value)
        assert not caught.value.retryable
        assert not pipeline.store.exists(pipeline.runner.last_uri)
    far = write_examples(pipeline, distance=np.full(1000, 901.0))
    with pytest.raises(StepFailed, match=r"(?s)split 'train' \(.*: the model fails on a batch of .* rows: .*too far"):
        predict(far, pipeline.model("failing"))


def test_operator_takes_a_model_or_a_name() -> None:
    for values in ({}, {"model": {"uri": "file:///m"}, "model_name": "flights"}):
        with pytest.raises(BadInput, match="expected one of them"):
            ScoreOperator(task_id="predict", examples=None, **values)
    rendered = ScoreOperator(task_id="predict", examples=None, model_name="{{ params.name }}")
    rendered.model_name = ""
    with pytest.raises(BadInput, match="expected one of them"):
        rendered.step_params({})


def test_dag_scores_by_a_connection_without_a_server(
    pipeline: Pipeline, run_dag: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection has a kind and a store; what it does not say lies in the store."""
    folder = f"{pipeline.store.root}/_serving"
    services = {"serving_kind": "batch", "serving_base_path": f"{folder}/models"}
    for kind in ("first", "second"):
        pipeline.deploy(pipeline.model(kind), services=services)
    pipeline.decide("promote", version=2, services=services)
    extra = {"serving_kind": "batch", "store": pipeline.store.root, "tracking_uri": pipeline.tracking_uri}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    conf = {"model_name": pipeline.name, "examples": write_examples(pipeline).to_dict()}
    run = run_dag("predict_rows", conf, "tests/extensions/scoring/dags")
    assert [ti.state for ti in run.get_task_instances()] == ["success"]
    predictions = pipeline.store.manifest(pipeline.store.uri("predict_rows", run.run_id, "predict", "predictions"))
    assert predictions.rows == {"train": RowCounts(1000, 1000)}
    assert (predictions.properties["version"], predictions.properties["columns"]) == (2, ["flight_id"])
    assert {role: [a.kind for a in result] for role, result in predictions.inputs.items()} == {
        "examples": ["examples"],
        "model": ["model"],
    }
    captured = pq.read_table(f"{folder}/captured/{pipeline.name}").to_pandas()
    assert (len(captured), set(captured["version"])) == (1000, {2})


def services_in(folder: Path) -> dict[str, str]:
    places = {"serving_base_path": str(folder / "models"), "serving_capture_path": str(folder / "captured")}
    return {"serving_kind": "batch", "serving_port": "1", "serving_rest_port": "1", **places}


@pytest.mark.parametrize(("canary", "decision"), [("onnx", "promoted"), ("nan", "rolled_back")])
def test_canary_that_scores_tables_is_promoted_or_rolled_back(
    pipeline: Pipeline, tmp_path: Path, canary: str, decision: str
) -> None:
    """Nothing listens on the connection's ports."""
    services = services_in(tmp_path)
    plan: dict[str, Any] = {"steps": [30, 60, 100], "min_requests": 100, "services": services}

    def score() -> dict[int, int]:
        scores = pipeline.runner(
            "airflow_hops.extensions.scoring.ml.stage:run",
            params={"model_name": pipeline.name},
            inputs={"examples": write_examples(pipeline)},
            kind="predictions",
            services=services,
            launcher=pipeline.launcher,
        )
        versions = read(pipeline, scores, "train")["version"].value_counts()
        assert versions.sum() == 1000
        return dict(versions.items())

    assert pipeline.deploy(pipeline.model("first"), services=services).properties["mode"] == "champion"
    assert score() == {1: 1000}
    deployment = pipeline.deploy(pipeline.model(canary), canary_percent=30, services=services)
    assert "0 requests" in pipeline.poll(deployment, **plan)["waiting"]["text"], "rows before the canary do not count"
    assert 200 < score()[2] < 400
    outcome = pipeline.poll(deployment, **plan)
    if decision == "promoted":
        counts = pipeline.record()["history"][-1]
        assert counts["canary"]["requests"] + counts["stable"]["requests"] == 1000, "a window counts once"
        assert "gets 60%" in outcome["waiting"]["text"] and outcome["waiting"]["requests"] is None
        assert 500 < score()[2] < 700
        outcome = pipeline.poll(deployment, **plan)
    assert outcome.properties["decision"] == decision
    serving = 2 if decision == "promoted" else 1
    assert pipeline.aliases()["champion"] == serving
    assert score() == {serving: 1000}
    if decision == "promoted":
        pipeline.decide("roll_back", to_version=None, services=services)
        assert score() == {1: 1000}
