"""Trained models as what the model server serves: converted, proved on held-out rows, refused where they differ."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_wine
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    OneHotEncoder,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier
from tensorflow_metadata.proto.v0 import statistics_pb2

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.target import Target
from airflow_hops.extensions.frameworks.serving import skops_files
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.features.transform_graph import trace_transform
from airflow_hops.ml.models.export import export_model
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.formats import open_model
from airflow_hops.serving.models.model_options import ModelOptions

PRICE = Target("price", "regression")
WINE = Target("wine", "multiclass", ("barolo", "grignolino", "barbera"))
LATE = Target("late", "binary")

RAW = {"carrier": "string", "distance": "float32", "hour": "int64"}


def flights(rows: int = 60) -> tuple[pd.DataFrame, Any]:
    table = pd.DataFrame(
        {
            "carrier": np.array(["AA", "UA", "DL"], object)[np.arange(rows) % 3],
            "distance": np.linspace(0, 1, rows, dtype=np.float32),
            "hour": np.arange(rows) % 24,
        }
    )
    return table, ((table.distance > 0.4) ^ (table.carrier == "UA")).astype(int)


def as_request(table: pd.DataFrame) -> dict[str, Any]:
    return {
        name: np.array([v.encode() for v in values], object) if values.dtype == object else values.to_numpy()
        for name, values in table.items()
    }


def ask(folder: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    servable = open_model("m", 1, folder, ModelOptions())
    try:
        return servable.predict(inputs)
    finally:
        servable.close()


@pytest.fixture(scope="module")
def transform_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transform graph of the raw flights, one of whose outputs needs no ``hour``."""

    def preprocess(features: dict[str, Any], constants: Constants) -> dict[str, Any]:
        carriers = tf.one_hot(tf.where(features["carrier"] == "UA", 1, 0), 2)
        return {
            "carriers": carriers,
            "squared": features["distance"] ** 2,
            "late_hour": tf.cast(features["hour"] > 12, tf.int64),
        }

    folder = tmp_path_factory.mktemp("transformed")
    traced = trace_transform(preprocess, RAW, Constants(statistics_pb2.DatasetFeatureStatistics()))
    traced.save(folder / "transform_graph")
    (folder / "features.json").write_text(FeatureSpecs(RAW, "late", None, None, traced.outputs).to_json())
    return folder / "transform_graph"


def test_a_regression_is_served_as_the_estimator_predicts(tmp_path: Path) -> None:
    x, y = load_diabetes(return_X_y=True, as_frame=True)
    model = make_pipeline(StandardScaler(), Ridge()).fit(x, y)
    exported = export_model(model, tmp_path, framework="sklearn", target=PRICE, sample=x)
    assert (exported.format, exported.framework, exported.not_converted) == ("onnx", "sklearn", None)
    assert exported.largest_difference < 1e-5
    assert {"scikit-learn", "skl2onnx", "onnxruntime"} <= exported.versions.keys()
    assert exported.inputs == dict.fromkeys(x.columns, "float32")
    rows = x.iloc[:7].astype(np.float32)
    result = ask(tmp_path / "onnx", as_request(rows))
    assert result.keys() == {"prediction"} and result["prediction"].dtype == np.float32
    assert result["prediction"] == pytest.approx(model.predict(x.iloc[:7]), rel=1e-5)
    with pytest.raises(FileExistsError, match="written once"):
        export_model(model, tmp_path, framework="sklearn", target=PRICE, sample=x)


def test_several_classes_have_names_and_probabilities(tmp_path: Path) -> None:
    x, y = load_wine(return_X_y=True)
    model = HistGradientBoostingClassifier(max_iter=10).fit(x.astype(np.float32), y)
    names = [f"m{number}" for number in range(x.shape[1])]
    exported = export_model(model, tmp_path, framework="sklearn", target=WINE, sample=x, order=names)
    assert list(exported.inputs) == names
    rows = x[::20].astype(np.float32)
    result = ask(tmp_path / "onnx", {name: rows[:, number] for number, name in enumerate(names)})
    expected = model.predict_proba(rows)
    assert result["probabilities"] == pytest.approx(expected, abs=1e-6)
    assert result["class"].tolist() == [WINE.classes[best].encode() for best in expected.argmax(axis=1)]


def test_pipeline_columns_are_graph_inputs_by_name(tmp_path: Path) -> None:
    table, late = flights()
    encoder = ColumnTransformer(
        [("carrier", OneHotEncoder(handle_unknown="ignore"), ["carrier"])], remainder="passthrough"
    )
    model = make_pipeline(encoder, LogisticRegression()).fit(table, late)
    exported = export_model(model, tmp_path, framework="sklearn", target=LATE, sample=table)
    assert exported.inputs == RAW
    rows = table.iloc[:5].assign(carrier=["AA", "UA", "", "never seen", "é"])
    result = ask(tmp_path / "onnx", as_request(rows))
    assert result["probability"] == pytest.approx(model.predict_proba(rows)[:, 1], abs=1e-6)


@pytest.mark.parametrize("as_frame", [True, False])
def test_transform_graph_precedes_any_model(tmp_path: Path, transform_graph: Path, as_frame: bool) -> None:
    """The model takes a vector and a number in an order of its own; requests hold the raw features that these need."""
    table, late = flights()
    is_ua, squared = (table.carrier == "UA").to_numpy(), table.distance.to_numpy() ** 2
    if as_frame:
        taken: Any = pd.DataFrame({"late_hour": (table.hour > 12).astype(int), "squared": squared})
        order = None
    else:
        taken, order = np.stack([squared, ~is_ua, is_ua], axis=1).astype(np.float32), ["squared", "carriers"]
    model = RandomForestClassifier(10, random_state=1).fit(taken, late)
    exported = export_model(
        model, tmp_path, framework="sklearn", target=LATE, sample=taken, transform_graph=transform_graph, order=order
    )
    raw = ["distance", "hour"] if as_frame else ["carrier", "distance"]
    assert list(exported.inputs) == raw
    result = ask(tmp_path / "onnx", as_request(table[raw]))
    assert result["probability"] == pytest.approx(model.predict_proba(taken)[:, 1], abs=1e-6)


def test_fall_back_stores_with_skops(tmp_path: Path, transform_graph: Path) -> None:
    """Its outputs have the names that they have in every format, and the transform graph stands before it as well."""
    table, late = flights()
    taken = pd.DataFrame({"squared": table.distance**2})
    steps = [FunctionTransformer(np.sqrt), LogisticRegression()]
    model = make_pipeline(*steps).fit(taken, late)
    values = {"framework": "sklearn", "target": LATE, "sample": taken, "transform_graph": transform_graph}
    with pytest.raises(
        BadInput, match=r"step 'functiontransformer' \(FunctionTransformer\) does not convert to ONNX.*"
    ):
        export_model(model, tmp_path, **values)
    assert list(tmp_path.iterdir()) == []
    exported = export_model(model, tmp_path, fall_back=True, **values)
    assert exported.format == "skops" and "skops" in exported.versions
    assert "functiontransformer" in (exported.not_converted or "")
    result = ask(tmp_path / "skops", as_request(table[["distance"]]))
    assert result.keys() == {"probability"}
    assert result["probability"] == pytest.approx(model.predict_proba(taken)[:, 1], abs=1e-6)


def test_difference_beyond_tolerance_names_rows(tmp_path: Path) -> None:
    values = 1e9 + np.arange(20.0)[:, None]
    model = LinearRegression().fit(values, np.arange(20.0))
    with pytest.raises(BadInput, match=r"differs from the trained one by more than 0.001 in \d+ of 20 rows") as raised:
        export_model(model, tmp_path, framework="sklearn", target=PRICE, sample=pd.DataFrame(values, columns=["x"]))
    assert re.search(r"row \d+: \S+ and not \S+; row \d+", str(raised.value))
    assert "train on float32 values" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


class Meddling(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A regression of its rows' distances to their mean, or one with noise."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise

    def fit(self, rows: Any, _: Any = None) -> Meddling:
        return self

    def predict(self, rows: Any) -> Any:
        values = np.asarray(rows)[:, 0]
        return values + np.random.normal(0, self.noise, len(rows)) if self.noise else values - values.mean()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            Meddling(),
            r"the trained model answers row \d+ with \S+ alone, and with \S+ in one of 178. A server is asked",
        ),
        (
            Meddling(9.0),
            r"row \d+ with \S+ when it is asked again, and with \S+ before. A served model must not be rand",
        ),
    ],
)
def test_model_that_answers_a_row_differently_is_refused(model: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        export_model(model, tmp_path, framework="sklearn", target=PRICE, sample=X, fall_back=True)


X, Y = load_wine(return_X_y=True)
NAMES = [f"m{number}" for number in range(13)]


@pytest.mark.parametrize(
    ("model", "target", "sample", "message"),
    [
        (Ridge().fit(X, Y), WINE, X, "Ridge has no method predict_proba, and the problem is multiclass; wrap it in"),
        (
            RandomForestClassifier(2).fit(X, np.array(["a", "b", "c"])[Y]), WINE, X,
            "was trained on the classes ['a', 'b', 'c']; expected their numbers, [0, 1, 2]",
        ),
        (
            RandomForestClassifier(2).fit(X[Y < 2], Y[Y < 2]), WINE, X,
            "was trained on the classes [0, 1]; expected their numbers, [0, 1, 2]: the labels of the examples as they "
            "are, with every class in training",
        ),
        (RandomForestClassifier(2).fit(X, Y), PRICE, X, "is a classifier, but the problem is regression"),
        (Ridge().fit(X, Y), PRICE, X[:0], "the sample has no rows"),
        (Ridge().fit(X, Y), PRICE, X[:, 0], "the sample is float64 of shape [178]; expected a data frame, or numbers"),
        (Ridge().fit(X, Y), PRICE, X[:, :5], "Ridge does not predict for the rows of the sample: X has 5 features"),
        (
            make_pipeline(SplineTransformer(), Ridge()).fit(X, Y), PRICE, X,
            "step 'splinetransformer' (SplineTransformer) does not convert to ONNX: Unable to find a shape calculator",
        ),
    ],
)  # fmt: skip
def test_unservable_models_are_refused_with_a_reason(
    tmp_path: Path, model: Any, target: Target, sample: Any, message: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        export_model(model, tmp_path, framework="sklearn", target=target, sample=sample)


def test_missing_packages_and_names_are_named(
    tmp_path: Path, transform_graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxmltools", None)  # other tests of this process may have had it

    class Booster:
        def predict(self, rows: Any) -> Any:
            return np.zeros(len(rows))

    with pytest.raises(BadInput, match="airflow hops runtime install onnxmltools"):
        export_model(Booster(), tmp_path, framework="lightgbm", target=PRICE, sample=X)
    with pytest.raises(
        BadInput, match="frameworks is 'jax', expected one of lightgbm, pyspark, sklearn, torch, xgboost"
    ):
        export_model(Booster(), tmp_path, framework="jax", target=PRICE, sample=X)
    model = Ridge().fit(X, Y)
    values = {"framework": "sklearn", "target": PRICE, "sample": X, "transform_graph": transform_graph}
    with pytest.raises(BadInput, match="the sample is a matrix, and order is None; expected the names"):
        export_model(model, tmp_path, **values)
    with pytest.raises(BadInput, match=r"takes 'm0', 'm1'.* which are not among the transform's outputs: carriers"):
        export_model(model, tmp_path, order=NAMES, **values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ["a", "b", "c", "d"]}, "the model's output is float32 of shape [1, 3]; expected numbers of shape"),
        ({"classes": [0, 1, 2]}, "'classes' is [0, 1, 2]; expected a list of names"),
        ({"model": []}, "no signature of a model (TypeError"),
        ({"problem": "ranking"}, "problem is 'ranking'; expected binary, multiclass or regression"),
        ({"output": "scores"}, "expected 'scores': name the prediction in 'output' of signature.json"),
        (
            {"model": {"matrix": {"type": "float", "width": 5}, "order": NAMES[:5]}},
            "a matrix of 13; signature.json says",
        ),
        ({"columns": [{"name": "m0", "type": "float"}]}, "the model takes 'm1', which requests do not hold"),
    ],
)
def test_signature_of_another_graph_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    model = RandomForestClassifier(2, max_depth=2).fit(X, Y)
    export_model(model, tmp_path, framework="sklearn", target=WINE, sample=X, order=NAMES)
    path = tmp_path / "onnx" / "signature.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ServingError, match=re.escape(message)):
        ask(tmp_path / "onnx", {name: np.zeros(1, np.float32) for name in NAMES})


@pytest.mark.parametrize("trees", [HistGradientBoostingClassifier, RandomForestClassifier, DecisionTreeClassifier])
def test_value_near_a_threshold_keeps_its_branch(trees: Any, tmp_path: Path) -> None:
    """Thresholds lie halfway between two values: 42.4, whose float32 is greater."""
    learned = pd.DataFrame({"bill": np.repeat(np.array([42.3, 42.5], np.float32), 50)})
    model = trees(random_state=0).fit(learned, np.repeat([0, 1], 50))
    held_out = pd.DataFrame({"bill": np.array([42.3, 42.4, 42.5], np.float32)})
    before = model.predict_proba(held_out)
    exported = export_model(model, tmp_path, framework="sklearn", target=LATE, sample=held_out)
    assert exported.largest_difference < 1e-6
    np.testing.assert_array_equal(model.predict_proba(held_out), before)


@pytest.mark.parametrize(
    "scaler", [StandardScaler(), StandardScaler(with_mean=False), StandardScaler(with_std=False), RobustScaler(),
               RobustScaler(with_centering=False), MaxAbsScaler()], ids=str,
)  # fmt: skip
def test_scaled_number_beside_threshold_keeps_its_leaf(scaler: Any, tmp_path: Path) -> None:
    """Beside floats, whole numbers are scaled in float64, and thresholds lie at whole numbers that training lacked."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"price": rng.gamma(2, 100, 2000).astype(np.float32), "age": rng.integers(0, 100, 2000)})
    late = (table.price / 100 + table.age / 50 + rng.normal(size=2000) > 3).astype(int)
    model = make_pipeline(scaler, RandomForestClassifier(30, random_state=0)).fit(table[:1000], late[:1000])
    exported = export_model(model, tmp_path, framework="sklearn", target=LATE, sample=table[1000:])
    assert exported.largest_difference < 1e-6


@pytest.mark.parametrize(
    ("model", "target", "output"),
    [
        (StackingClassifier([("a", RandomForestClassifier(10)), ("b", LogisticRegression())]), LATE, "probability"),
        (
            VotingRegressor([("a", make_pipeline(StandardScaler(), RandomForestRegressor(10))), ("b", Ridge())]),
            PRICE,
            "prediction",
        ),
    ],
    ids=["stacking", "voting"],
)
def test_mixed_ensemble_with_trees_is_exported(model: Any, target: Target, output: str, tmp_path: Path) -> None:
    table, late = flights()
    table = table.drop(columns="carrier").astype(np.float32)
    model.fit(table, late)
    exported = export_model(model, tmp_path, framework="sklearn", target=target, sample=table)
    assert exported.largest_difference < 1e-4
    expected = model.predict_proba(table)[:, 1] if target is LATE else model.predict(table)
    np.testing.assert_allclose(ask(tmp_path / "onnx", as_request(table))[output], expected, rtol=1e-4, atol=1e-5)


def test_description_of_a_skops_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skops_files, "MAX_SCHEMA_BYTES", 1000)
    with zipfile.ZipFile(tmp_path / "model.skops", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", "[" + " " * 1000 + "]")
    for load in (skops_files.untrusted_types, skops_files.load_estimator):
        with pytest.raises(ValueError, match=r"model.skops: schema.json has 1002 bytes; the limit is 1000 bytes"):
            load(tmp_path / "model.skops")
