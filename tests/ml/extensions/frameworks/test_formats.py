"""Models of each format, as every stage after training takes them: scored, judged, validated, asked for splits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from echo_models import write_function
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from tensorflow_metadata.proto.v0 import statistics_pb2

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, write_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.frameworks import scikit_learn
from airflow_hops.ml import infra_validate
from airflow_hops.ml.evaluate import stage
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.features.transform_graph import trace_transform
from airflow_hops.ml.metrics.scoring import ScoredModel, score
from airflow_hops.ml.models.export import export_model
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.testing.frameworks import FrameworkContract, TrainedCase
from airflow_hops.testing.model_formats import ModelFormatContract

ROWS = 400
FEATURES = ("rooms", "age")
PRICE = Target("price", "regression")
KIND = Target("kind", "multiclass", ("flat", "house", "shed"))


def table() -> pa.Table:
    random = np.random.default_rng(3)
    rooms, age = random.uniform(1, 9, ROWS).astype(np.float32), random.uniform(0, 90, ROWS)
    price = 50.0 * rooms - age + random.normal(0, 5, ROWS)
    return pa.table({"rooms": rooms, "age": age, "price": price, "kind": np.digitize(rooms, [3, 6])})


@pytest.fixture(scope="module")
def examples(shared_store: ArtifactStore) -> Callable[[Target], Artifact]:
    def write(target: Target) -> Artifact:
        uri = shared_store.uri("formats", target.label, "prepare", "examples")
        with shared_store.create(uri, "examples", Producer()) as writer:
            (writer.path / "eval").mkdir()
            pq.write_table(table(), writer.path / "eval" / "part-0.parquet")
            properties = ExamplesProperties(
                target.label, splits=("eval",), problem=target.problem, classes=target.classes
            )
            return writer.commit(rows={"eval": RowCounts(ROWS, ROWS)}, properties=properties.to_dict())

    return write


def export_to(store: ArtifactStore, run_id: str, model: Any, target: Target, sample: Any, **options: Any) -> Artifact:
    with store.create(store.uri("formats", run_id, "train", "model"), "model", Producer()) as writer:
        exported = export_model(model, writer.path, framework="sklearn", target=target, sample=sample, **options)
        properties = ModelProperties(
            label=target.label, problem=target.problem, classes=target.classes, format=exported.format,
            framework=exported.framework, synchronized=True,
        )  # fmt: skip
        return writer.commit(properties=properties.to_dict())


def test_model_is_compared_with_a_champion_of_another_format(
    run_shared_stage: Callable[..., Any],
    shared_store: ArtifactStore,
    examples: Callable[[Target], Artifact],
    tmp_path: Path,
) -> None:
    """The champion's artifact is gone: it is read where it is served."""
    rows = table().select(FEATURES).to_pandas().astype(np.float32)
    trees, line = HistGradientBoostingRegressor(max_iter=20), make_pipeline(FunctionTransformer(np.sqrt), Ridge())
    candidate, champion = (
        export_to(shared_store, name, model.fit(rows, table()["price"].to_numpy()), PRICE, rows, fall_back=fall_back)
        for name, model, fall_back in (("candidate", trees, False), ("champion", line, True))
    )
    assert [model_folder(shared_store, model).name for model in (candidate, champion)] == ["onnx", "skops"]
    served = shutil.copytree(model_folder(shared_store, champion), tmp_path / "1")
    gone = Artifact(champion.uri + "-gone", "model", champion.fingerprint, properties=champion.properties)
    write_record(shared_store, "formats", ModelRecord(champion=ServedVersion.of(gone, 1, str(served), 100)))
    inputs = {"model": candidate, "examples": examples(PRICE)}
    params = {"model_name": "formats", "min_improvement": -1.0}
    evaluation = run_shared_stage(stage.run, kind="evaluation", inputs=inputs, **params)
    figures = json.loads((shared_store.local(evaluation) / "evaluation.json").read_text())["splits"]["eval"]
    assert figures["candidate"]["rows"] == ROWS and figures["gain"] is not None
    assert figures["candidate"]["r2"] == pytest.approx(0.99, abs=0.05)


@pytest.mark.server
def test_model_with_transform_graph_is_validated_and_scored(
    shared_store: ArtifactStore, examples: Callable[[Target], Artifact], tmp_path: Path
) -> None:
    def preprocess(features: dict[str, Any], constants: Constants) -> dict[str, Any]:
        return {"both": tf.stack([features["rooms"], features["age"] / 90.0], axis=1)}

    raw = dict.fromkeys(FEATURES, "float32")
    traced = trace_transform(preprocess, raw, Constants(statistics_pb2.DatasetFeatureStatistics()))
    traced.save(tmp_path / "transform_graph")
    specs = FeatureSpecs(raw, "kind", None, None, traced.outputs)
    (tmp_path / "features.json").write_text(specs.to_json())
    both = np.stack([table()["rooms"], table()["age"].to_numpy() / 90], axis=1).astype(np.float32)
    estimator = LogisticRegression(max_iter=200).fit(both, table()["kind"].to_numpy())
    options = {"transform_graph": tmp_path / "transform_graph", "order": ["both"]}
    trained = export_to(shared_store, "graph", estimator, KIND, both, **options)
    folder = model_folder(shared_store, trained)
    files = [shared_store.local(examples(KIND)) / "eval" / "part-0.parquet"]
    (tmp_path / "scratch").mkdir()
    assert infra_validate.validate_serving(folder, files, tmp_path / "scratch", requests=4)["rows"] == 4

    model = ScoredModel(folder)
    assert (model.problem, model.classes, model.inputs) == ("multiclass", 3, dict.fromkeys(FEATURES, "float32"))
    predicted = model.predict({name: table()[name].to_numpy() for name in FEATURES})
    assert np.mean(predicted.argmax(axis=1) == table()["kind"].to_numpy()) > 0.9


def test_double_input_keeps_double_precision(tmp_path: Path) -> None:
    write_function(tmp_path / "model", lambda at: {"prediction": tf.cast(at - 1.7e9, tf.float32)}, at=tf.float64)
    pq.write_table(pa.table({"at": 1.7e9 + np.arange(3.0), "label": np.arange(3.0)}), tmp_path / "rows.parquet")
    scored = score({"model": ScoredModel(tmp_path / "model")}, [tmp_path / "rows.parquet"], "label")
    assert scored.predictions["model"].tolist() == [0.0, 1.0, 2.0]
    write_function(tmp_path / "narrow", lambda at: {"prediction": tf.cast(at, tf.float32)}, at=tf.int32)
    with pytest.raises(BadInput, match=r"input 'at' is int32, which does not hold 4294967297"):
        ScoredModel(tmp_path / "narrow").predict({"at": np.array([7, 2**32 + 1])})


def test_unscorable_folder_is_explained(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing: the SavedModel does not load"):
        ScoredModel(tmp_path / "nothing")
    (tmp_path / "model.onnx").write_bytes(b"none")
    with pytest.raises(BadInput, match=r"the ONNX model does not load .*rotobuf parsing failed"):
        ScoredModel(tmp_path)
    rows = table().select(FEATURES).to_pandas().to_numpy(np.float32)
    model = LogisticRegression().fit(rows, table()["kind"].to_numpy())
    export_model(model, tmp_path / "matrix", framework="sklearn", target=KIND, sample=rows)
    with pytest.raises(BadInput, match=r"input 'inputs' has shape \(None, 2\); expected \[batch\] or"):
        ScoredModel(tmp_path / "matrix" / "onnx")


NUMBERS = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
SUMS = NUMBERS.sum(axis=1)


class TestScikitLearn(FrameworkContract):
    framework = "sklearn"

    def train(self) -> TrainedCase:
        return TrainedCase(LinearRegression().fit(NUMBERS, SUMS), NUMBERS, Target("sum", "regression"), ("a", "b"))


class TestEstimators(ModelFormatContract):
    format = "skops"
    rows = {"inputs": NUMBERS[:3].astype(np.float64)}

    def write(self, folder: Path) -> None:
        scikit_learn.save(LinearRegression().fit(NUMBERS, SUMS), folder / "saved", NUMBERS.astype(np.float64))
        shutil.copytree(folder / "saved", folder, dirs_exist_ok=True)


class TestOnnx(ModelFormatContract):
    format = "onnx"
    rows = {"a": NUMBERS[:3, 0], "b": NUMBERS[:3, 1]}

    def write(self, folder: Path) -> None:
        model, target = LinearRegression().fit(NUMBERS, SUMS), Target("sum", "regression")
        export_model(model, folder, framework="sklearn", target=target, sample=NUMBERS, order=("a", "b"))
        shutil.copytree(folder / "onnx", folder, dirs_exist_ok=True)
