"""Effect of drift on predictions, and their own drift, with models whose answers are known."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from echo_models import write_echo_model, write_function

from airflow_hops.core.errors import BadInput
from airflow_hops.core.skew import SkewTest
from airflow_hops.ml.metrics.scoring import ScoredModel
from airflow_hops.ml.skew import detect_skew
from airflow_hops.ml.skew.attribution import attribute_drift, restore
from airflow_hops.ml.skew.predictions import compare_predictions


def write_model(folder: Path) -> Path:
    """A SavedModel whose answers are known: 0.5 + 0.05 x - 0.1 y, 0.2 more where red, 0.1 more where m is missing."""

    def serve(x: Any, y: Any, m: Any, colour: Any, unused: Any) -> Any:
        red = tf.where(colour == b"red", 0.2, 0.0)
        lost = tf.where(tf.math.is_nan(m), 0.1, 0.0)
        return {"probability": 0.5 + 0.05 * x - 0.1 * y + red + lost + 0.0 * tf.cast(unused, tf.float32)}

    floats = dict.fromkeys("xym", tf.float32)
    return write_function(folder, serve, **floats, colour=tf.string, unused=tf.int64)


def model_rows(rows: int, seed: int, *, drifted: bool = False) -> pa.Table:
    """Rows for that model: drifted ones have x one higher, red three times of four, m lost half of the time."""
    random = np.random.default_rng(seed)
    red = random.random(rows) < (0.75 if drifted else 0.5)
    lost = random.random(rows) < (0.5 if drifted else 0.0)
    return pa.table(
        {
            "x": random.normal(1.0 if drifted else 0.0, 1.0, rows),
            "y": random.normal(size=rows),
            "m": pa.array(random.normal(size=rows), mask=lost),
            "colour": pa.array(np.where(red, "red", random.choice(["blue", "green"], rows))),
            "unused": random.integers(0, 5, rows) + 3 * drifted,
        }
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def attributed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    reference, same = model_rows(20_000, 1), model_rows(10_000, 2)
    drifted = model_rows(10_000, 3, drifted=True)
    path = tmp_path_factory.mktemp("rows") / "drifted.parquet"
    pq.write_table(drifted, path, row_group_size=1000)
    results = {
        "drifted": attribute_drift(model, reference, path),
        "again": attribute_drift(model, reference, path),
        "same": attribute_drift(model, reference, same),
        "two": attribute_drift(model, reference, drifted.slice(0, 50), features=["x", "y"], rows=20),
        "back": attribute_drift(model, drifted, reference, features=["x", "m"]),
    }
    return {name: {**a.to_dict(), "names": list(a.effects)} for name, a in results.items()}


def test_drifted_features_have_their_model_effect(attributed: Any) -> None:
    drifted, effects = attributed["drifted"], attributed["drifted"]["effects"]
    # x is one standard deviation higher: 0.05. Red is served a quarter more often, at 0.2. m is lost half of the time.
    assert effects["x"]["effect"] == pytest.approx(0.05, abs=0.003)
    assert effects["x"]["effect_signed"] == pytest.approx(0.05, abs=0.003)
    for name in ("colour", "m"):
        assert effects[name]["effect"] == pytest.approx(0.05, abs=4 * effects[name]["standard_error"])
        assert effects[name]["effect_signed"] == pytest.approx(effects[name]["effect"], rel=0.05)
        assert 0.0005 < effects[name]["standard_error"] < 0.003
    assert effects["unused"]["effect"] == 0 and drifted["names"][-1] == "unused"
    assert drifted["prediction_current"] - drifted["prediction_reference"] == pytest.approx(0.15, abs=0.02)
    assert drifted["rows"] == 2000
    # Predictions vary by 0.1 with y: independent draws would change them by 0.11.
    assert effects["y"]["effect"] < 0.006
    assert max(effect["effect"] for effect in attributed["same"]["effects"].values()) < 0.006


def test_the_same_seed_gives_the_same_effects_and_features_can_be_chosen(attributed: Any) -> None:
    assert attributed["again"] == attributed["drifted"]
    assert (set(attributed["two"]["names"]), attributed["two"]["rows"]) == ({"x", "y"}, 20)
    assert attributed["back"]["effects"]["x"]["effect_signed"] == pytest.approx(-0.05, abs=0.004)
    assert attributed["back"]["effects"]["m"]["effect_signed"] == pytest.approx(-0.05, abs=0.008)


def test_restored_numbers_keep_order_and_reference_distribution() -> None:
    random = np.random.default_rng(0)
    low, high = random.normal(size=4000), random.normal(3.0, 2.0, size=4000)
    back = restore(high, low, random)
    assert (np.sort(back) == np.sort(low)).all()
    assert (np.argsort(back) == np.argsort(high)).all()
    whole = np.round(random.normal(size=4000)).astype(np.int64)
    assert (restore(whole, whole[::-1], random) == whole).all()


def test_restored_categories_change_least() -> None:
    text = np.array([b"a"] * 700 + [b"b"] * 200 + [b""] * 100, object)
    more = np.array([b"a"] * 1000 + [b"c"] * 600 + [b""] * 400, object)
    words = restore(text, more, np.random.default_rng(0))
    # Of 1,000: a from 700 to 500, b from 200 to 0; c and the missing value take their places.
    assert {word: int((words == word).sum()) for word in (b"a", b"b", b"c", b"")} == {
        b"a": 500, b"b": 0, b"c": 300, b"": 200,
    }  # fmt: skip
    assert (words != text).sum() == 400


def test_missing_values_match_the_reference_share() -> None:
    random = np.random.default_rng(0)
    low = random.normal(size=4000)
    holes = np.where(random.random(4000) < 0.25, np.nan, random.normal(3.0, 2.0, size=4000))
    filled = restore(holes, low, random)
    assert not np.isnan(filled).any()
    assert low.min() <= filled.min() and filled.max() <= low.max()
    assert np.isnan(restore(low, holes, random)).mean() == pytest.approx(0.25, abs=0.02)
    assert np.isnan(restore(low, np.full(10, np.nan), random)).all()
    assert not np.isnan(restore(np.full(10, np.nan), low, random)).any()


def test_unattributable_features_are_named(model: Path) -> None:
    rows = model_rows(100, 1)

    def changed(name: str, values: pa.Array) -> pa.Table:
        return rows.set_column(rows.schema.get_field_index(name), name, values)

    gaps, infinite = pa.array([None] * 50 + [1] * 50, pa.int64()), pa.array([np.inf] * 100)
    for reference, current, options, words in (
        (rows, rows.drop(["y"]), {}, "current: there is no column 'y'; the columns are colour, m, unused, x"),
        (rows, rows.slice(0, 0), {}, "current: no rows"),
        (changed("unused", gaps), rows, {}, "reference: column 'unused' is an integer and missing in 50 of 100 rows"),
        (changed("x", infinite), rows, {}, "'probability' is NaN or infinite in 100 rows"),
        (rows, rows, {"rows": 1}, "rows is 1, expected at least 2"),
    ):
        with pytest.raises(BadInput, match=words):
            attribute_drift(model, reference, current, **options)


def test_effects_are_in_label_units_or_half_of_class_changes(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    old = pa.table({"price": random.normal(1000.0, 50.0, 5000), "p": random.beta(2, 8, 5000)})
    new = pa.table({"price": random.normal(1200.0, 50.0, 5000), "p": random.beta(6, 4, 5000)})
    price = attribute_drift(write_echo_model(tmp_path / "price", "prediction", ["price"]), old, new)
    assert price.problem == "regression"
    assert price.effects["price"].effect == pytest.approx(200.0, abs=5.0) == price.effects["price"].effect_signed
    assert price.prediction_current == pytest.approx(1200.0, abs=5.0)
    model = write_echo_model(tmp_path / "kinds", "probabilities", ["p", "price"])
    old, new = (table.set_column(0, "price", pa.array(np.full(5000, 0.5))) for table in (old, new))
    kinds = attribute_drift(model, old, new, classes=("red", "blue"))
    moved = kinds.effects["p"]
    assert moved.by_class == {"red": pytest.approx(0.4, abs=0.02), "blue": 0.0} and moved.effect_signed is None
    assert moved.effect == pytest.approx(0.2, abs=0.01) and kinds.effects["price"].effect == 0.0
    assert kinds.by_class is not None and kinds.by_class["red"] == pytest.approx((0.2, 0.6), abs=0.02)
    assert json.loads(json.dumps(kinds.to_dict()))["problem"] == "multiclass"


@pytest.fixture(scope="module")
def product_model(tmp_path_factory: pytest.TempPathFactory) -> ScoredModel:
    folder = tmp_path_factory.mktemp("product")
    return ScoredModel(write_function(folder, lambda x, y: {"prediction": x * y}, x=tf.float32, y=tf.float32))


def pair_rows(count: int, seed: int, *, correlation: float = 0.0) -> pa.Table:
    random = np.random.default_rng(seed)
    x, other = random.normal(size=(2, count))
    y = correlation * x + (1 - correlation**2) ** 0.5 * other
    return pa.table({"x": x, "y": y, "hour": np.arange(count) * 3600})


def test_correlated_drift_changes_predictions(product_model: ScoredModel) -> None:
    reference, same, together = pair_rows(8_000, 1), pair_rows(2_000, 2), pair_rows(2_000, 3, correlation=0.9)
    unchanged = compare_predictions(product_model, reference, same, SkewTest())
    assert not unchanged.drifted and unchanged.score <= unchanged.threshold
    moved = compare_predictions(product_model, reference, together, SkewTest())
    assert moved.drifted and moved.score > 0.3 and moved.threshold == 0.05
    assert detect_skew(reference.drop(["hour"]), together.drop(["hour"])).verdict == "stable"


def test_predictions_are_compared_with_windows_of_the_reference(product_model: ScoredModel) -> None:
    reference = pa.concat_tables([pair_rows(500, seed, correlation=0.9 * (seed % 2)) for seed in range(8)])
    reference = reference.set_column(2, "hour", pa.array(np.arange(4_000) * 3600))
    windows = "hour", 0.0, 500 * 3600.0
    usual = compare_predictions(
        product_model, reference, pair_rows(500, 9, correlation=0.9), SkewTest(), windows=windows
    )
    other = compare_predictions(
        product_model, reference, pair_rows(500, 9, correlation=-0.9), SkewTest(), windows=windows
    )
    assert compare_predictions(product_model, reference, pair_rows(500, 9, correlation=0.9), SkewTest()).drifted
    assert (usual.drifted, other.drifted) == (False, True)


def test_likeliest_of_several_classes_is_compared(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    product_model = ScoredModel(write_echo_model(tmp_path / "kinds", "probabilities", ["p", "q"]))
    old, new = (pa.table({"p": random.random(3_000), "q": random.random(3_000) * scale}) for scale in (1.0, 1.5))
    moved = compare_predictions(product_model, old, new, SkewTest(), classes=("red", "blue"))
    assert moved.drifted and re.match("'(red|blue)' in ", moved.summary or "")
    with pytest.raises(BadInput, match="current: there is no column 'q'"):
        compare_predictions(product_model, old, new.drop(["q"]), SkewTest())
