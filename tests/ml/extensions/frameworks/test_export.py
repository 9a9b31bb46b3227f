"""Trained models as what the model server serves: converted, proved on held-out rows, refused where they differ."""

from __future__ import annotations

import json
import re
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    OneHotEncoder,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
)
from sklearn.svm import SVC
from tensorflow_metadata.proto.v0 import statistics_pb2

from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.frameworks.serving import skops_files
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.features.transform_graph import trace_transform
from airflow_hops.ml.models.export import export_model
from airflow_hops.serving.errors import ServingError
from tests.ml.extensions.frameworks.exported import (
    GRAPES,
    LATE,
    NAMES,
    PRICE,
    WINE,
    WINES,
    X,
    ask,
    assert_answers,
    export,
    flights,
)

RAW = {"carrier": "string", "distance": "float32", "hour": "int64"}


@pytest.fixture(scope="module")
def transform_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transform graph of the raw flights, one of whose outputs needs no ``hour``."""

    def preprocess(features: dict[str, Any], constants: Constants) -> dict[str, Any]:
        carriers = tf.one_hot(tf.where(features["carrier"] == "UA", 1, 0), 2)
        late_hour = tf.cast(features["hour"] > 12, tf.int64)
        return {"carriers": carriers, "squared": features["distance"] ** 2, "late_hour": late_hour}

    folder = tmp_path_factory.mktemp("transformed")
    traced = trace_transform(preprocess, RAW, Constants(statistics_pb2.DatasetFeatureStatistics()))
    traced.save(folder / "transform_graph")
    (folder / "features.json").write_text(FeatureSpecs(RAW, "late", None, None, traced.outputs).to_json())
    return folder / "transform_graph"


def test_a_regression_is_served_as_the_estimator_predicts(tmp_path: Path) -> None:
    x, y = load_diabetes(return_X_y=True, as_frame=True)
    model = make_pipeline(StandardScaler(), Ridge()).fit(x, y)
    exported = export(model, tmp_path, PRICE, x)
    assert (exported.format, exported.framework, exported.not_converted) == ("onnx", "sklearn", None)
    assert exported.largest_difference < 1e-5
    assert {"scikit-learn", "skl2onnx", "onnxruntime"} <= exported.versions.keys()
    assert exported.inputs == dict.fromkeys(x.columns, "float32")
    result = ask(tmp_path / "onnx", x.iloc[:7].astype(np.float32))
    assert result.keys() == {"prediction"} and result["prediction"].dtype == np.float32
    assert result["prediction"] == pytest.approx(model.predict(x.iloc[:7]), rel=1e-5)
    with pytest.raises(FileExistsError, match="written once"):
        export(model, tmp_path, PRICE, x)


@pytest.mark.parametrize(
    ("model", "agrees"),
    [
        (SGDClassifier(loss="log_loss", random_state=0), False),  # tied probabilities of large features
        (make_pipeline(StandardScaler(), SGDClassifier(loss="log_loss", random_state=0)), True),
        (SVC(probability=True, random_state=0), False),  # Platt's probabilities
        (CalibratedClassifierCV(SVC(random_state=0), ensemble=False), True),
        (RandomForestClassifier(10, random_state=0), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_served_class_is_the_predicted_one_or_the_model_is_refused(tmp_path: Path, model: Any, agrees: bool) -> None:
    model.fit(X[::3], GRAPES[::3])
    if agrees:
        export(model, tmp_path, WINE, X, order=NAMES)
        assert [WINE.classes.index(each.decode()) for each in ask(tmp_path / "onnx", WINES)["class"]] == [
            *model.predict(X)
        ]
        return
    with pytest.raises(BadInput, match=r"the served class is the likeliest, .* rows of the sample: row \d+: '"):
        export(model, tmp_path, WINE, X, order=NAMES)
    assert not list(tmp_path.iterdir())


def test_pipeline_columns_are_graph_inputs_by_name(tmp_path: Path) -> None:
    table, late = flights()
    encode = ColumnTransformer([("of", OneHotEncoder(handle_unknown="ignore"), ["carrier"])], remainder="passthrough")
    model = make_pipeline(encode, LogisticRegression()).fit(table, late)
    assert export(model, tmp_path, LATE, table).inputs == RAW
    rows = table.iloc[:5].assign(carrier=["AA", "UA", "", "never seen", "é"])
    assert_answers(model, tmp_path / "onnx", LATE, rows)


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
    model = RandomForestClassifier(5, random_state=1).fit(taken, late)
    exported = export(model, tmp_path, LATE, taken, transform_graph=transform_graph, order=order)
    raw = ["distance", "hour"] if as_frame else ["carrier", "distance"]
    assert list(exported.inputs) == raw
    assert_answers(model, tmp_path / "onnx", LATE, table[raw], taken)


@pytest.mark.slow
def test_fall_back_stores_with_skops(tmp_path: Path, transform_graph: Path) -> None:
    """Its outputs have the names that they have in every format, and the transform graph stands before it as well."""
    table, late = flights()
    taken = pd.DataFrame({"squared": table.distance**2})
    model = make_pipeline(FunctionTransformer(np.sqrt), LogisticRegression()).fit(taken, late)
    with pytest.raises(BadInput, match=r"'functiontransformer' \(FunctionTransformer\) does not convert to ONNX.*"):
        export(model, tmp_path, LATE, taken, transform_graph=transform_graph)
    assert list(tmp_path.iterdir()) == []
    exported = export(model, tmp_path, LATE, taken, transform_graph=transform_graph, fall_back=True)
    assert exported.format == "skops" and "skops" in exported.versions
    assert "functiontransformer" in (exported.not_converted or "")
    assert ask(tmp_path / "skops", table[["distance"]]).keys() == {"probability"}
    assert_answers(model, tmp_path / "skops", LATE, table[["distance"]], taken)


def test_difference_beyond_tolerance_names_rows(tmp_path: Path) -> None:
    values = 1e9 + np.arange(20.0)[:, None]
    model = LinearRegression().fit(values, np.arange(20.0))
    with pytest.raises(BadInput, match=r"differs from the trained one by more than 0.001 in \d+ of 20 rows") as raised:
        export(model, tmp_path, PRICE, pd.DataFrame(values, columns=["x"]))
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


def test_model_that_answers_a_row_differently_is_refused(tmp_path: Path) -> None:
    for noise, message in (
        (0.0, r"the trained model answers row \d+ with \S+ alone, and with \S+ in one of 178. A server is asked"),
        (9.0, r"row \d+ with \S+ when it is asked again, and with \S+ before. A served model must not be rand"),
    ):
        with pytest.raises(BadInput, match=message):
            export(Meddling(noise), tmp_path, PRICE, X, fall_back=True)


@pytest.mark.parametrize(
    ("model", "labels", "target", "sample", "message"),
    [
        (Ridge(), GRAPES, WINE, X, "Ridge has no method predict_proba, and the problem is multiclass; wrap it in"),
        (
            RandomForestClassifier(2), np.array(["a", "b", "c"])[GRAPES], WINE, X,
            "was trained on the classes ['a', 'b', 'c']; expected their numbers, [0, 1, 2]",
        ),
        (
            RandomForestClassifier(2), GRAPES.clip(0, 1), WINE, X,
            "was trained on the classes [0, 1]; expected their numbers, [0, 1, 2]: the labels of the examples as they "
            "are, with every class in training",
        ),
        (RandomForestClassifier(2), GRAPES, PRICE, X, "is a classifier, but the problem is regression"),
        (Ridge(), GRAPES, PRICE, X[:0], "the sample has no rows"),
        (Ridge(), GRAPES, PRICE, X[:, 0], "the sample is float32 of shape [178]; expected a data frame, or numbers"),
        (Ridge(), GRAPES, PRICE, X[:, :5], "Ridge does not predict for the rows of the sample: X has 5 features"),
        (
            make_pipeline(SplineTransformer(), Ridge()), GRAPES, PRICE, X,
            "step 'splinetransformer' (SplineTransformer) does not convert to ONNX: Unable to find a shape calculator",
        ),
    ],
)  # fmt: skip
def test_unservable_models_are_refused_with_a_reason(
    tmp_path: Path, model: Any, labels: Any, target: Target, sample: Any, message: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        export(model.fit(X, labels), tmp_path, target, sample)


def test_missing_packages_and_names_are_named(
    tmp_path: Path, transform_graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxmltools", None)  # other tests of this process may have had it

    class Booster:
        def predict(self, rows: Any) -> Any:
            return np.zeros(len(rows))

    with pytest.raises(BadInput, match="airflow hops runtime install onnxmltools"):
        export(Booster(), tmp_path, PRICE, X, framework="lightgbm")
    with pytest.raises(BadInput, match="is 'jax', expected one of lightgbm, pyspark, sklearn, torch, xgboost"):
        export(Booster(), tmp_path, PRICE, X, framework="jax")
    model = Ridge().fit(X, GRAPES)
    with pytest.raises(BadInput, match="the sample is a matrix, and order is None; expected the names"):
        export(model, tmp_path, PRICE, X, transform_graph=transform_graph)
    with pytest.raises(BadInput, match=r"takes 'm0', 'm1'.* which are not among the transform's outputs: carriers"):
        export(model, tmp_path, PRICE, X, transform_graph=transform_graph, order=NAMES)


@pytest.fixture(scope="module")
def exported_forest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forest")
    export(RandomForestClassifier(2, max_depth=2).fit(X, GRAPES), folder, WINE, X, order=NAMES)
    return folder / "onnx"


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
def test_signature_of_another_graph_is_refused(
    tmp_path: Path, exported_forest: Path, change: dict[str, Any], message: str
) -> None:
    path = shutil.copytree(exported_forest, tmp_path / "onnx") / "signature.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ServingError, match=re.escape(message)):
        ask(tmp_path / "onnx", WINES[:1] * 0)


def test_value_near_a_threshold_keeps_its_branch(tmp_path: Path) -> None:
    """Thresholds lie halfway between two values: 42.4, whose float32 is greater."""
    learned = pd.DataFrame({"bill": np.repeat(np.array([42.3, 42.5], np.float32), 50)})
    held_out = pd.DataFrame({"bill": np.array([42.3, 42.4, 42.5], np.float32)})
    for model in (HistGradientBoostingClassifier(max_iter=5), RandomForestClassifier(5, random_state=0)):
        model.fit(learned, np.repeat([0, 1], 50))
        probabilities = model.predict_proba(held_out)
        assert export(model, tmp_path / type(model).__name__, LATE, held_out).largest_difference < 1e-6
        np.testing.assert_array_equal(model.predict_proba(held_out), probabilities)


def test_scaled_number_beside_threshold_keeps_its_leaf(tmp_path: Path) -> None:
    """Beside floats, whole numbers are scaled in float64, and thresholds lie at whole numbers that training lacked."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"price": rng.gamma(2, 100, 1000).astype(np.float32), "age": rng.integers(0, 100, 1000)})
    late = (table.price / 100 + table.age / 50 + rng.normal(size=1000) > 3).astype(int)
    plain, without_mean, without_std = StandardScaler(), StandardScaler(with_mean=False), StandardScaler(with_std=False)
    for number, scaler in enumerate((plain, without_mean, without_std, RobustScaler(), MaxAbsScaler())):
        model = make_pipeline(scaler, RandomForestClassifier(10, random_state=0)).fit(table[:500], late[:500])
        assert export(model, tmp_path / str(number), LATE, table[500:]).largest_difference < 1e-6, scaler


def test_mixed_ensemble_with_trees_is_exported(tmp_path: Path) -> None:
    table, late = flights()
    table = table.drop(columns="carrier").astype(np.float32)
    scaled = make_pipeline(StandardScaler(), RandomForestRegressor(5))
    for model, target in (
        (StackingClassifier([("a", RandomForestClassifier(5)), ("b", LogisticRegression())], cv=2), LATE),
        (VotingRegressor([("a", scaled), ("b", Ridge())]), PRICE),
    ):
        folder = tmp_path / target.label
        assert export(model.fit(table, late), folder, target, table).largest_difference < 1e-4
        assert_answers(model, folder / "onnx", target, table)


def test_description_of_a_skops_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skops_files, "MAX_SCHEMA_BYTES", 1000)
    with zipfile.ZipFile(tmp_path / "model.skops", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", "[" + " " * 1000 + "]")
    for load in (skops_files.untrusted_types, skops_files.load_estimator):
        with pytest.raises(ValueError, match=r"model.skops: schema.json has 1002 bytes; the limit is 1000 bytes"):
            load(tmp_path / "model.skops")


@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent", "constant"])
def test_imputer_of_columns_of_several_types_is_exported(tmp_path: Path, strategy: str) -> None:
    """The export compares the graph with the pipeline, in rows with missing values, too."""
    random = np.random.default_rng(0)
    table = pd.DataFrame({"whole": random.integers(0, 9, 200), "flag": random.random(200) < 0.5})
    table["real"] = np.where(np.arange(200) % 7, random.normal(0, 1, 200), np.nan).astype(np.float32)
    late, target = (table["whole"] > 4).astype(int), Target("late", "binary")
    for number, names in enumerate((["whole", "real"], ["real", "whole", "flag"], ["whole", "flag"], ["real"])):
        for missing in (np.nan, 0):
            if missing == 0 and "real" in names:
                continue  # scikit-learn refuses NaN there
            imputer = SimpleImputer(strategy=strategy, missing_values=missing)
            encode = ColumnTransformer([("numbers", imputer, names)])
            model = make_pipeline(encode, LogisticRegression()).fit(table[names], late)
            folder = tmp_path / f"{number}-{missing}"
            written = export_model(model, folder, framework="sklearn", target=target, sample=table[names])
            assert (written.format, written.largest_difference < 1e-5) == ("onnx", True)
