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
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from tensorflow_metadata.proto.v0 import statistics_pb2

from airflow_hops.core.contract.artifacts import Artifact, BadInput, Producer, RowCounts
from airflow_hops.core.contract.model_record import ModelRecord, ServedVersion
from airflow_hops.core.contract.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.contract.target import Target
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.model_records import write_record
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.features.transform_graph import trace_transform
from airflow_hops.ml.metrics.scoring import ServedModel, score
from airflow_hops.ml.models.export import export_model
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.stages import infra_validate
from airflow_hops.ml.stages.batch_predict.batches import PredictionPlan, SignatureModel, predict_part
from airflow_hops.ml.stages.evaluate import stage
from airflow_hops.ml.stages.transform.batches import TransformPart

pytestmark = pytest.mark.runtime

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
    """Examples of houses, for a target."""

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


@pytest.fixture(scope="module")
def train(shared_store: ArtifactStore) -> Callable[..., Artifact]:
    """Trains and exports; one that has no converter is stored with skops."""

    def make(target: Target, *, converts: bool = True, run_id: str = "1") -> Artifact:
        rows = table().select(FEATURES).to_pandas().astype(np.float32)
        labels = table()[target.label].to_numpy()
        regressor = HistGradientBoostingRegressor(max_iter=20) if converts else LinearRegression()
        last = regressor if target is PRICE else LogisticRegression(max_iter=200)
        model = make_pipeline(StandardScaler() if converts else FunctionTransformer(np.sqrt), last).fit(rows, labels)
        uri = shared_store.uri("formats", f"{target.label}-{converts}-{run_id}", "train", "model")
        with shared_store.create(uri, "model", Producer()) as writer:
            exported = export_model(
                model, writer.path, framework="sklearn", target=target, sample=rows, fall_back=not converts
            )
            properties = ModelProperties(
                label=target.label, problem=target.problem, classes=target.classes, format=exported.format,
                framework=exported.framework, synchronized=True,
            )  # fmt: skip
            return writer.commit(properties=properties.to_dict())

    return make


@pytest.mark.parametrize(("target", "converts"), [(PRICE, True), (KIND, False)], ids=["onnx", "skops"])
def test_model_is_compared_with_a_champion_of_another_format(
    run_shared_stage: Callable[..., Any],
    shared_store: ArtifactStore,
    examples: Callable[[Target], Artifact],
    train: Callable[..., Artifact],
    tmp_path: Path,
    target: Target,
    converts: bool,
) -> None:
    """The champion's artifact is gone: it is read where it is served."""
    candidate, champion = train(target, converts=converts), train(target, converts=not converts, run_id="2")
    assert model_folder(shared_store, candidate).name == ("onnx" if converts else "skops")
    served = tmp_path / "1"
    shutil.copytree(model_folder(shared_store, champion), served)
    gone = Artifact(champion.uri + "-gone", "model", champion.fingerprint, properties=champion.properties)
    name = f"formats-{target.label}"
    write_record(shared_store, name, ModelRecord(champion=ServedVersion.of(gone, 1, str(served), 100)))
    inputs = {"model": candidate, "examples": examples(target)}
    evaluation = run_shared_stage(stage.run, kind="evaluation", inputs=inputs, model_name=name, min_improvement=-1.0)
    report = json.loads((shared_store.local(evaluation) / "evaluation.json").read_text())
    figures = report["splits"]["eval"]
    assert figures["candidate"]["rows"] == ROWS and figures["gain"] is not None
    quality = figures["candidate"]["r2" if target is PRICE else "accuracy"]
    assert quality == pytest.approx(0.99, abs=0.05)


@pytest.mark.server
def test_model_with_transform_graph_is_validated_and_predicts_splits(
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
    with shared_store.create(shared_store.uri("formats", "kind", "graph", "model"), "model", Producer()) as writer:
        exported = export_model(
            estimator, writer.path, framework="sklearn", target=KIND, sample=both,
            transform_graph=tmp_path / "transform_graph", order=["both"],
        )  # fmt: skip
        properties = ModelProperties(
            label=KIND.label, problem=KIND.problem, classes=KIND.classes, format=exported.format, framework="sklearn",
            synchronized=True,
        )  # fmt: skip
        trained = writer.commit(properties=properties.to_dict())
    folder = model_folder(shared_store, trained)
    files = [shared_store.local(examples(KIND)) / "eval" / "part-0.parquet"]
    (tmp_path / "scratch").mkdir()
    assert infra_validate.validate_serving(folder, files, tmp_path / "scratch", requests=4).rows == 4

    plan = PredictionPlan(trained, shared_store, "serving_default", OutputFolder(str(tmp_path)), ("age",), 150)
    summary = json.loads(predict_part(plan, TransformPart("eval", files[0], (0,), ROWS, 0)))
    assert (summary["rows"], summary["error"]) == (ROWS, None)
    predicted = pq.read_table(tmp_path / "eval")
    assert predicted.column_names == ["age", "class", "probabilities"]
    assert (
        np.mean(np.array(predicted["class"].to_pylist()) == np.array([b"flat", b"house", b"shed"])[table()["kind"]])
        > 0.9
    )
    model = ServedModel(folder)
    assert (model.problem, model.classes, model.inputs) == ("multiclass", 3, dict.fromkeys(FEATURES, "float32"))
    arrays = {name: table()[name].to_numpy() for name in FEATURES}
    assert np.stack(predicted["probabilities"].to_pylist()) == pytest.approx(model.predict(arrays), abs=1e-6)


def test_double_input_keeps_double_precision(tmp_path: Path) -> None:
    module = tf.Module()
    seconds = tf.TensorSpec([None], tf.float64, name="at")
    module.serve = tf.function(lambda at: {"prediction": tf.cast(at - 1.7e9, tf.float32)}, input_signature=[seconds])
    tf.saved_model.save(module, str(tmp_path / "model"), signatures={"serving_default": module.serve})
    pq.write_table(pa.table({"at": 1.7e9 + np.arange(3.0), "label": np.arange(3.0)}), tmp_path / "rows.parquet")
    scored = score({"model": ServedModel(tmp_path / "model")}, [tmp_path / "rows.parquet"], "label")
    assert scored.predictions["model"].tolist() == [0.0, 1.0, 2.0]
    narrow = tf.TensorSpec([None], tf.int32, name="at")
    module.serve = tf.function(lambda at: {"prediction": tf.cast(at, tf.float32)}, input_signature=[narrow])
    tf.saved_model.save(module, str(tmp_path / "narrow"), signatures={"serving_default": module.serve})
    with pytest.raises(BadInput, match=r"input 'at' is int32, which does not hold 4294967297"):
        ServedModel(tmp_path / "narrow").predict({"at": np.array([7, 2**32 + 1])})


def test_unscorable_folder_is_explained(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing: the SavedModel does not load"):
        ServedModel(tmp_path / "nothing")
    (tmp_path / "model.onnx").write_bytes(b"none")
    with pytest.raises(BadInput, match=r"the ONNX model does not load .*rotobuf parsing failed"):
        ServedModel(tmp_path)
    rows = table().select(FEATURES).to_pandas().to_numpy(np.float32)
    model = LogisticRegression().fit(rows, table()["kind"].to_numpy())
    export_model(model, tmp_path / "matrix", framework="sklearn", target=KIND, sample=rows)
    with pytest.raises(BadInput, match=r"input 'inputs' has shape \(None, 2\); expected \[batch\] or"):
        ServedModel(tmp_path / "matrix" / "onnx")


def lists(values: list[Any], kind: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], ["x"])


@pytest.mark.parametrize("width", [2, None])
def test_integer_and_string_lists_reach_a_model_unchanged(tmp_path: Path, width: int | None) -> None:
    def predict(dtype: Any, batch: pa.RecordBatch, shape: tuple[int | None, ...] = (None, width)) -> list[Any]:
        module = tf.Module()
        same = tf.function(lambda x: {"same": tf.identity(x)}, input_signature=[tf.TensorSpec(shape, dtype, name="x")])
        module.same = same
        tf.saved_model.save(module, str(tmp_path / "m"), signatures=same.get_concrete_function())
        result: list[Any] = SignatureModel(tmp_path / "m", "serving_default").predict(batch, "file")["same"].tolist()
        return result

    large = [[2**60 + 1, 2], [3, 4]]
    assert predict(tf.int64, lists(large, pa.list_(pa.int64()))) == large
    strings = lists([["a", None], ["b", "a"]], pa.list_(pa.string()))
    assert predict(tf.string, strings) == [[b"a", b""], [b"b", b"a"]]
    for kind, dtype, value in (
        (pa.list_(pa.int64()), tf.int64, [1, 2]),
        (pa.list_(pa.string()), tf.string, ["a", "b"]),
    ):
        with pytest.raises(
            BadInput, match="file: column 'x' has 0 values in 1 of 2 rows, row 2 the first; expected 2 in"
        ):
            predict(dtype, lists([value, None], kind))
    with pytest.raises(BadInput, match="column 'x' is an integer and missing in 1 of 4"):
        predict(tf.int64, lists([[1, 2], [None, 4]], pa.list_(pa.int64())))
    floats = pa.list_(pa.float32())
    if width is None:
        with pytest.raises(BadInput, match="file: column 'x' has no list in 2 rows, and the signature leaves"):
            predict(tf.float32, lists([None, None], floats))
        assert predict(tf.float32, lists([[1.0], [2.0]], floats), (None,)) == [1, 2]
    else:
        assert np.isnan(predict(tf.float32, lists([None, None], floats))).tolist() == [[True] * 2] * 2


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_float_outputs_become_columns(tmp_path: Path, dtype: Any) -> None:
    module = tf.Module()
    module.half = tf.function(
        lambda x: {"one": tf.cast(x, dtype), "two": tf.cast(tf.stack([x, -x], axis=1), dtype)},
        input_signature=[tf.TensorSpec([None], tf.float32, name="x")],
    )
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=module.half.get_concrete_function())
    model = SignatureModel(tmp_path / "m", "serving_default")
    batch = pa.RecordBatch.from_arrays([pa.array([0.5, 1.25], pa.float32())], ["x"])
    outputs = model.predict(batch, "file")
    assert {name: values.dtype for name, values in outputs.items()} == {"one": np.float32, "two": np.float32}
    assert outputs["two"].tolist() == [[0.5, -0.5], [1.25, -1.25]]
    assert {np.dtype(kind) for kind, _ in model.outputs.values()} == {np.dtype(np.float32)}
