"""Exported models on values that held-out rows lack: gaps, unknown categories, other alphabets, names of all kinds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_wine
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.target import Target
from airflow_hops.ml.models.export import export_model
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.formats import open_model
from airflow_hops.serving.models.model_options import ModelOptions

PRICE = Target("price", "regression")
WINE = Target("wine", "multiclass", ("barolo", "grignolino", "barbera"))
LATE = Target("late", "binary")
OUTPUTS = {PRICE: "prediction", WINE: "probabilities", LATE: "probability"}

_WINE, GRAPES = load_wine(return_X_y=True, as_frame=True)
WINES = _WINE.astype(np.float32).set_axis([f"m{number}" for number in range(13)], axis=1)
_DIABETES, GROWTH = load_diabetes(return_X_y=True, as_frame=True)
PATIENTS = _DIABETES.astype(np.float32)

WORDS = ["good", "bad", "fine", "awful", "nice", "poor", "great", "film", "plot", "actor"]
_RANDOM = np.random.default_rng(0)
REVIEWS = pd.DataFrame({"text": [" ".join(_RANDOM.choice(WORDS, 5)) for _ in range(200)]})
LIKED = np.array(
    [text.count("good") + text.count("great") > text.count("bad") + text.count("awful") for text in REVIEWS.text]
)


def export(model: Any, folder: Path, target: Target, sample: Any, **options: Any) -> Any:
    return export_model(model, folder, framework="sklearn", target=target, sample=sample, **options)


def ask(folder: Path, rows: pd.DataFrame) -> dict[str, Any]:
    columns = {
        name: np.array([value.encode() for value in column], object) if column.dtype == object else column.to_numpy()
        for name, column in rows.items()
    }
    servable = open_model("m", 1, folder, ModelOptions())
    try:
        return servable.predict(columns)
    finally:
        servable.close()


def encoded(encoder: Any, model: Any = None) -> Any:
    """A pipeline of flights, whose carrier is encoded."""
    columns = ColumnTransformer([("carrier", encoder, ["carrier"])], remainder="passthrough")
    return make_pipeline(columns, LogisticRegression() if model is None else model)


@pytest.fixture(scope="module")
def flights() -> tuple[pd.DataFrame, Any]:
    random = np.random.default_rng(1)
    carriers = np.array(["AA", "UA", "DL"], object)[random.integers(0, 3, 200)]
    table = pd.DataFrame({"carrier": carriers, "distance": random.random(200, np.float32)})
    return table, ((table.distance > 0.4) ^ (table.carrier == "UA")).astype(int)


@pytest.mark.parametrize(
    ("model", "target", "rows", "labels"),
    [
        (RandomForestClassifier(10), WINE, WINES, GRAPES),
        (ExtraTreesClassifier(10), WINE, WINES, GRAPES),
        (DecisionTreeClassifier(), WINE, WINES, GRAPES),
        (BaggingClassifier(n_estimators=5), WINE, WINES, GRAPES),
        (CalibratedClassifierCV(RandomForestClassifier(5), cv=2), WINE, WINES, GRAPES),
        (make_pipeline(StandardScaler(), RandomForestClassifier(10)), WINE, WINES, GRAPES),
        (RandomForestRegressor(10), PRICE, PATIENTS, GROWTH),
    ],
    ids=lambda value: type(value).__name__,
)
def test_missing_values_follow_the_branch_of_the_trained_trees(
    model: Any, target: Target, rows: pd.DataFrame, labels: Any, tmp_path: Path
) -> None:
    model.fit(rows, labels)
    export(model, tmp_path, target, rows)
    for name in rows:
        gap = rows[::5].assign(**{name: np.float32(np.nan)})
        expected = model.predict(gap) if target is PRICE else model.predict_proba(gap)
        np.testing.assert_allclose(ask(tmp_path / "onnx", gap)[OUTPUTS[target]], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "target", "rows", "labels"),
    [
        (AdaBoostClassifier(n_estimators=5), WINE, WINES, GRAPES),
        (KNeighborsClassifier(), WINE, WINES, GRAPES),
        (KNeighborsRegressor(), PRICE, PATIENTS, GROWTH),
        (make_pipeline(StandardScaler(), SVC(probability=True)), WINE, WINES, GRAPES),
        (make_pipeline(StandardScaler(), LogisticRegression()), WINE, WINES, GRAPES),
    ],
    ids=lambda value: type(value).__name__,
)
def test_served_model_refuses_the_same_numbers(
    model: Any, target: Target, rows: pd.DataFrame, labels: Any, tmp_path: Path
) -> None:
    model.fit(rows, labels)
    export(model, tmp_path, target, rows)
    asked = rows[:4].copy()
    assert len(ask(tmp_path / "onnx", asked)[OUTPUTS[target]]) == 4
    for value, word in ((np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")):
        asked.iloc[1, 2] = value
        with pytest.raises(ServingError, match=rf"{word} in row 1, which the trained model refuses"):
            ask(tmp_path / "onnx", asked)


def test_only_imputed_columns_may_be_missing(tmp_path: Path) -> None:
    filled = ColumnTransformer([("filled", SimpleImputer(), ["m0"])], remainder="passthrough")
    model = make_pipeline(filled, LogisticRegression(max_iter=5000)).fit(WINES, GRAPES)
    export(model, tmp_path, WINE, WINES)
    gap = WINES[:3].assign(m0=np.float32(np.nan))
    np.testing.assert_allclose(ask(tmp_path / "onnx", gap)["probabilities"], model.predict_proba(gap), atol=1e-5)
    with pytest.raises(ServingError, match="input 'm1' is NaN in row 0"):
        ask(tmp_path / "onnx", gap.assign(m1=np.float32(np.nan)))


@pytest.mark.parametrize("encoder", [OrdinalEncoder(), OneHotEncoder()], ids=lambda value: type(value).__name__)
def test_served_model_refuses_the_same_categories(
    encoder: Any, flights: tuple[pd.DataFrame, Any], tmp_path: Path
) -> None:
    table, late = flights
    model = encoded(encoder, RandomForestClassifier(5)).fit(table, late)
    export(model, tmp_path, LATE, table)
    asked = table[:6]
    expected = model.predict_proba(asked)[:, 1]
    np.testing.assert_allclose(ask(tmp_path / "onnx", asked)["probability"], expected, atol=1e-6)
    for carrier in ("", "never seen", "aa", "Ä"):
        with pytest.raises(ServingError, match=r"out of data bounds|Unknown Category"):
            ask(tmp_path / "onnx", asked.assign(carrier=carrier))


@pytest.mark.parametrize(
    "vectorizer",
    [
        TfidfVectorizer(),
        TfidfVectorizer(lowercase=False),
        CountVectorizer(ngram_range=(1, 2)),
        CountVectorizer(token_pattern=r"(?u)\b\w+\b"),
        TfidfVectorizer(stop_words=["film"]),
    ],
    ids=["tfidf", "cased", "pairs", "letters", "stop words"],
)
def test_text_model_accepts_any_alphabet(vectorizer: Any, tmp_path: Path) -> None:
    model = make_pipeline(ColumnTransformer([("words", vectorizer, "text")]), LogisticRegression())
    model.fit(REVIEWS, LIKED.astype(int))
    exported = export(model, tmp_path, LATE, REVIEWS)
    assert exported.format == "onnx"
    texts = [
        "goodé bad",
        "étégood",
        "GOOD ÉTÉ",
        "",
        "日本語 good",
        "a good b bad",
        "good_bad good-bad",
        "ÜBER great",
        "good\u00a0bad",
    ]
    asked = pd.DataFrame({"text": texts})
    np.testing.assert_allclose(
        ask(tmp_path / "onnx", asked)["probability"], model.predict_proba(asked)[:, 1], atol=1e-5
    )


def test_conversion_differing_on_categories_is_refused(flights: tuple[pd.DataFrame, Any], tmp_path: Path) -> None:
    table, late = flights
    encoder = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=1)
    model = encoded(encoder).fit(table, late)
    with pytest.raises(BadInput) as raised:
        export(model, tmp_path, LATE, table)
    message = str(raised.value)
    assert re.search(r"row 0 with 'carrier' never seen: an error \(.*Unknown Category.*\) and not 0\.\d+", message)
    assert "set fall_back=True to store the estimator itself with skops" in message
    assert "step 'columntransformer' (ColumnTransformer) is converted inexactly" in message
    assert "float32" not in message
    assert list(tmp_path.iterdir()) == []
    exported = export(model, tmp_path, LATE, table, fall_back=True)
    assert exported.format == "skops" and "Unknown Category" in (exported.not_converted or "")
    unknown = table[:3].assign(carrier="never seen")
    np.testing.assert_allclose(
        ask(tmp_path / "skops", unknown)["probability"], model.predict_proba(unknown)[:, 1], atol=1e-6
    )


def test_graph_that_does_not_load_counts_as_not_convertible(tmp_path: Path) -> None:
    rows, odd = WINES[:40], (np.arange(40) % 2).astype(int)
    model = GaussianProcessClassifier().fit(rows, odd)
    with pytest.raises(BadInput, match=r"the exported model \(onnx\) does not load.*set fall_back=True"):
        export(model, tmp_path, LATE, rows)
    with pytest.raises(BadInput, match=r"does not load.*, and GaussianProcessClassifier holds types that skops"):
        export(model, tmp_path, LATE, rows, fall_back=True)


def test_unexplained_difference_is_not_blamed_on_float32(tmp_path: Path) -> None:
    """The converter leaves out the columns that say what was missing."""
    gaps = WINES.mask(np.random.default_rng(0).random(WINES.shape) < 0.1)
    model = make_pipeline(SimpleImputer(add_indicator=True), LogisticRegression(max_iter=5000)).fit(gaps, GRAPES)
    with pytest.raises(BadInput, match=r"differs from the trained one by more than 0.001 in \d+ of 178 rows") as raised:
        export(model, tmp_path, WINE, gaps)
    assert "step 'simpleimputer' (SimpleImputer) is converted inexactly; float32 features are not" in str(raised.value)
    assert "train on float32 values" not in str(raised.value)
    assert export(model, tmp_path, WINE, gaps, fall_back=True).format == "skops"
    result = ask(tmp_path / "skops", gaps)["probabilities"]
    np.testing.assert_allclose(result, model.predict_proba(gaps), atol=1e-6)


def test_columns_may_share_names_with_graph_results(tmp_path: Path) -> None:
    names = ["label", "probabilities", "variable", "output_label", "/label", "a b", "a.b", "größe", "inputs", "0/label"]
    table = WINES.iloc[:, : len(names)].set_axis(names, axis=1)
    columns = ColumnTransformer([("all", "passthrough", names)])
    one, other = (make_pipeline(columns, LogisticRegression(max_iter=5000)) for _ in range(2))
    one.fit(table, GRAPES)
    exported = export(one, tmp_path / "one", WINE, table)
    assert list(exported.inputs) == names
    expected = one.predict_proba(table)
    np.testing.assert_allclose(ask(tmp_path / "one" / "onnx", table)["probabilities"], expected, atol=1e-5)
    other.fit(table, GRAPES > 0)
    target = Target("wine", "multiclass", WINE.classes, more=(LATE,))
    export({"wine": one, "late": other}, tmp_path / "both", target, table)
    result = ask(tmp_path / "both" / "onnx", table)
    np.testing.assert_allclose(result["probabilities"], expected, atol=1e-5)
    np.testing.assert_allclose(result["late_probability"], other.predict_proba(table)[:, 1], atol=1e-5)


@pytest.mark.parametrize("name", ["label", "probabilities", "variable", "text"])
def test_texts_may_be_the_only_features(name: str, tmp_path: Path) -> None:
    table = REVIEWS.set_axis([name], axis=1).assign(carrier=np.array(["AA", "UA"], object)[np.arange(200) % 2])
    words = ColumnTransformer([("words", TfidfVectorizer(), name), ("one", OneHotEncoder(), ["carrier"])])
    for number, (first, rows) in enumerate(
        [(words, table), (OneHotEncoder(handle_unknown="ignore"), table[["carrier"]])]
    ):
        model = make_pipeline(first, Ridge()).fit(rows, LIKED.astype(float))
        exported = export(model, tmp_path / str(number), PRICE, rows)
        assert list(exported.inputs) == list(rows)
        result = ask(tmp_path / str(number) / "onnx", rows)["prediction"]
        np.testing.assert_allclose(result, model.predict(rows), atol=1e-5)
