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
from sklearn.datasets import load_diabetes
from sklearn.ensemble import AdaBoostClassifier, BaggingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.serving.errors import ServingError
from tests.ml.extensions.frameworks.exported import (
    GRAPES,
    LATE,
    OUTPUTS,
    PRICE,
    WINE,
    WINES,
    ask,
    assert_answers,
    export,
    flights,
)

_DIABETES, GROWTH = load_diabetes(return_X_y=True, as_frame=True)
PATIENTS = _DIABETES.astype(np.float32)
FLIGHTS, IS_LATE = flights()
FLIGHTS = FLIGHTS.drop(columns="hour")

WORDS = ["good", "bad", "fine", "awful", "nice", "poor", "great", "film", "plot", "actor"]
_RANDOM = np.random.default_rng(0)
REVIEWS = pd.DataFrame({"text": [" ".join(_RANDOM.choice(WORDS, 5)) for _ in range(100)]})
LIKED = np.array([text.count("good") > text.count("bad") + text.count("awful") for text in REVIEWS.text])


def encoded(encoder: Any, model: Any = None) -> Any:
    """A pipeline of flights, whose carrier is encoded."""
    columns = ColumnTransformer([("carrier", encoder, ["carrier"])], remainder="passthrough")
    return make_pipeline(columns, LogisticRegression() if model is None else model)


@pytest.mark.parametrize(
    ("model", "target"),
    [
        (DecisionTreeClassifier(), WINE),
        (BaggingClassifier(n_estimators=3), WINE),
        (CalibratedClassifierCV(RandomForestClassifier(3), cv=2), WINE),
        (make_pipeline(StandardScaler(), RandomForestClassifier(5)), WINE),
        (RandomForestRegressor(5), PRICE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_missing_values_follow_the_branch_of_the_trained_trees(model: Any, target: Target, tmp_path: Path) -> None:
    rows, labels = (WINES, GRAPES) if target is WINE else (PATIENTS, GROWTH)
    export(model.fit(rows, labels), tmp_path, target, rows)
    gaps = [rows[::20].assign(**{name: np.float32(np.nan)}) for name in rows]
    assert_answers(model, tmp_path / "onnx", target, pd.concat(gaps))


@pytest.mark.parametrize(
    ("model", "target"),
    [
        (AdaBoostClassifier(n_estimators=3), WINE),
        (KNeighborsClassifier(), WINE),
        (KNeighborsRegressor(), PRICE),
        (make_pipeline(StandardScaler(), SVC(probability=True)), WINE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_served_model_refuses_the_same_numbers(model: Any, target: Target, tmp_path: Path) -> None:
    rows, labels = (WINES, GRAPES) if target is WINE else (PATIENTS, GROWTH)
    export(model.fit(rows, labels), tmp_path, target, rows)
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
    assert_answers(model, tmp_path / "onnx", WINE, gap)
    with pytest.raises(ServingError, match="input 'm1' is NaN in row 0"):
        ask(tmp_path / "onnx", gap.assign(m1=np.float32(np.nan)))


@pytest.mark.parametrize("encoder", [OrdinalEncoder(), OneHotEncoder()], ids=lambda value: type(value).__name__)
def test_served_model_refuses_the_same_categories(encoder: Any, tmp_path: Path) -> None:
    model = encoded(encoder, RandomForestClassifier(5)).fit(FLIGHTS, IS_LATE)
    export(model, tmp_path, LATE, FLIGHTS)
    asked = FLIGHTS[:6]
    assert_answers(model, tmp_path / "onnx", LATE, asked)
    for carrier in ("", "never seen", "aa", "Ä"):
        with pytest.raises(ServingError, match=r"out of data bounds|Unknown Category"):
            ask(tmp_path / "onnx", asked.assign(carrier=carrier))


def test_text_model_accepts_any_alphabet(tmp_path: Path) -> None:
    words = "goodé bad|étégood|GOOD ÉTÉ||日本語 good|a good b bad|good_bad good-bad|ÜBER great|good\u00a0bad"
    for number, vectorizer in enumerate(
        (
            TfidfVectorizer(),
            TfidfVectorizer(lowercase=False),
            CountVectorizer(ngram_range=(1, 2)),
            CountVectorizer(token_pattern=r"(?u)\b\w+\b"),
            TfidfVectorizer(stop_words=["film"]),
        )
    ):
        model = make_pipeline(ColumnTransformer([("words", vectorizer, "text")]), LogisticRegression())
        exported = export(model.fit(REVIEWS, LIKED.astype(int)), tmp_path / str(number), LATE, REVIEWS)
        assert exported.format == "onnx"
        assert_answers(model, tmp_path / str(number) / "onnx", LATE, pd.DataFrame({"text": words.split("|")}))


def test_conversion_differing_on_categories_is_refused(tmp_path: Path) -> None:
    encoder = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=1)
    model = encoded(encoder).fit(FLIGHTS, IS_LATE)
    with pytest.raises(BadInput) as raised:
        export(model, tmp_path, LATE, FLIGHTS)
    message = str(raised.value)
    assert re.search(r"row 0 with 'carrier' never seen: an error \(.*Unknown Category.*\) and not 0\.\d+", message)
    assert "set fall_back=True to store the estimator itself with skops" in message
    assert "step 'columntransformer' (ColumnTransformer) is converted inexactly" in message
    assert "float32" not in message
    assert list(tmp_path.iterdir()) == []
    exported = export(model, tmp_path, LATE, FLIGHTS, fall_back=True)
    assert exported.format == "skops" and "Unknown Category" in (exported.not_converted or "")
    assert_answers(model, tmp_path / "skops", LATE, FLIGHTS[:3].assign(carrier="never seen"))


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
    assert_answers(model, tmp_path / "skops", WINE, gaps)


def test_columns_may_share_names_with_graph_results(tmp_path: Path) -> None:
    names = ["label", "probabilities", "variable", "output_label", "/label", "a b", "a.b", "größe", "inputs", "0/label"]
    table = WINES.iloc[:, : len(names)].set_axis(names, axis=1)
    columns = ColumnTransformer([("all", "passthrough", names)])
    one, other = (make_pipeline(columns, LogisticRegression(max_iter=5000)) for _ in range(2))
    one.fit(table, GRAPES)
    assert list(export(one, tmp_path / "one", WINE, table).inputs) == names
    assert_answers(one, tmp_path / "one" / "onnx", WINE, table)
    other.fit(table, GRAPES > 0)
    target = Target("wine", "multiclass", WINE.classes, more=(LATE,))
    export({"wine": one, "late": other}, tmp_path / "both", target, table)
    result = ask(tmp_path / "both" / "onnx", table)
    np.testing.assert_allclose(result["probabilities"], one.predict_proba(table), atol=1e-5)
    np.testing.assert_allclose(result["late_probability"], other.predict_proba(table)[:, 1], atol=1e-5)


@pytest.mark.parametrize("name", ["label", "variable", "text"])
def test_texts_may_be_the_only_features(name: str, tmp_path: Path) -> None:
    table = REVIEWS.set_axis([name], axis=1).assign(carrier=np.array(["AA", "UA"], object)[np.arange(100) % 2])
    words = ColumnTransformer([("words", TfidfVectorizer(), name), ("one", OneHotEncoder(), ["carrier"])])
    cases = [(words, table), (OneHotEncoder(handle_unknown="ignore"), table[["carrier"]])]
    for number, (first, rows) in enumerate(cases[: 2 if name == "text" else 1]):
        model = make_pipeline(first, Ridge()).fit(rows, LIKED.astype(float))
        assert list(export(model, tmp_path / str(number), PRICE, rows).inputs) == list(rows)
        assert_answers(model, tmp_path / str(number) / "onnx", PRICE, rows)
