"""Options of statistics as a DAG states them, and the JSON twin: small, strict JSON, and what a page wants to know."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow_data_validation as tfdv

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.statistics import generate_statistics, summary
from airflow_hops.ml.statistics.options import options_from
from airflow_hops.ml.statistics.summary import summarize


@cache
def table() -> pa.Table:
    """Letters, numbers that depend on them, times since the epoch, what is missing, several values, an infinity."""
    random = np.random.default_rng(5)
    letters = random.choice(["a", "b", "c"], 5000)
    numbers = random.normal(size=5000) + (letters == "a")
    seconds = 1_700_000_000 + (numbers * 1000).astype("int64")
    holes = np.where(random.random(5000) < 0.3, np.nan, numbers * 2 + random.normal(size=5000))
    infinite = numbers.copy()
    infinite[7] = np.inf
    return pa.table(
        {
            "letter": pa.array(letters),
            "digit": pa.array(random.integers(0, 4, 5000)),
            "y": pa.array((numbers > 0.5).astype("int64")),
            "number": pa.array(numbers),
            "seconds": pa.array(seconds),
            "holes": pa.array(holes),
            "constant": pa.array([0.1] * 5000),
            "infinite": pa.array(infinite),
            "several": pa.array([[1.0, float(i)][: 1 + i % 2] for i in range(5000)]),
            "photo": pa.array([f"{i}" for i in range(5000)]),
        }
    )


_SHOWN = (
    "feature_allowlist", "frequency_threshold", "num_histogram_buckets", "num_quantiles_histogram_buckets",
    "num_rank_histogram_buckets", "num_top_values", "num_values_histogram_buckets", "sample_rate", "weight_feature",
    "weighted_frequency_threshold", "enable_semantic_domain_stats",
)  # fmt: skip

NUMBERS = {
    "num_top_values": 5, "num_rank_histogram_buckets": 7, "num_histogram_buckets": 8, "frequency_threshold": 2,
    "num_quantiles_histogram_buckets": 4, "num_values_histogram_buckets": 3, "sample_rate": 0.5,
}  # fmt: skip
GOOD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    (NUMBERS, NUMBERS),
    ({"semantic_domains": True}, {"enable_semantic_domain_stats": True}),
    ({"features": ["a", "b"], "slice_by": ["a"]}, {"feature_allowlist": ["a", "b"]}),
    ({"per_feature_weight_override": {"a": "v"}}, {"weight_of_a": "v"}),
    ({"weight_feature": "w", "weighted_frequency_threshold": 2.5},
     {"weight_feature": "w", "weighted_frequency_threshold": 2.5, "weight_of_a": "w"}),
]  # fmt: skip

BAD: list[tuple[Any, str]] = [
    ({"slice": ["a"]}, "options has 'slice', expected some of features, frequency_threshold"),
    ({"slice_by": "carrier"}, "options.slice_by is 'carrier', expected a list of features"),
    ({"slice_values": {"a": [1.5]}}, "options.slice_values is {'a': [1.5]}, expected a mapping from features to lists"),
    ({"sample_rate": 2}, "options.sample_rate is 2, expected a number above 0 and at most 1"),
    ({"num_top_values": True}, "options.num_top_values is True, expected a whole number of at least 1"),
    ({"num_values_histogram_buckets": 1}, "options.num_values_histogram_buckets is 1, expected a whole number of at"),
    ({"semantic_domains": "yes"}, "options.semantic_domains is 'yes', expected true or false"),
    ({"features": []}, "options.features is [], expected a list of names"),
    ({"features": ["a"], "weight_feature": "w"}, "options.features has no 'w', which options.weight_feature needs"),
    ({"features": ["a"], "slice_by": [["a", "b"]]}, "options.features has no 'b', which options.slice_by needs"),
]


@pytest.mark.parametrize(("options", "told"), GOOD)
def test_options_reach_tfdv(options: dict[str, Any], told: dict[str, Any]) -> None:
    default, made = tfdv.StatsOptions(), options_from(options)
    results = {name: getattr(made, name) for name in _SHOWN if getattr(made, name) != getattr(default, name)}
    weights = made.example_weight_map
    if weights.all_weight_features():
        results["weight_of_a"] = weights.get(tfdv.FeaturePath(["a"]))
    assert results == told


@pytest.mark.parametrize(("options", "words"), BAD)
def test_invalid_option_is_named_with_the_valid_ones(options: Any, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        options_from(options)
    assert words in str(refused.value)


LETTERS, DIGITS = [f"letter_{x}" for x in "abc"], [f"digit_{d}" for d in range(4)]


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"slice_by": ["letter"], "slice_values": {"digit": [3]}}, [*LETTERS, "digit_3"]),
        ({"slice_by": [["letter", "digit"]]}, [f"{digit}_{letter}" for digit in DIGITS for letter in LETTERS]),
        ({"slice_by": [["letter", "digit"]], "slice_values": {"letter": ["b"]}}, [f"{d}_letter_b" for d in DIGITS]),
        ({"slice_values": {"letter": ["a", "z"]}}, ["letter_a"]),
    ],
)
def test_slices_have_their_rows(options: dict[str, Any], keys: list[str]) -> None:
    whole = table()
    letter, digit = whole["letter"].to_numpy(), whole["digit"].to_numpy()
    rows = {f"letter_{one}": (letter == one).sum() for one in "abc"}
    rows |= {f"digit_{one}": (digit == one).sum() for one in range(4)}
    rows |= {f"digit_{d}_letter_{x}": ((letter == x) & (digit == d)).sum() for d in range(4) for x in "abc"}
    result = generate_statistics(whole, options=options_from({**options, "features": ["letter", "digit"]}))
    assert [(dataset.name, dataset.num_examples) for dataset in result.datasets] == [
        ("All Examples", 5000), *((key, rows[key]) for key in sorted(keys)),
    ]  # fmt: skip


def _dataset(schema: Any = None, **options: Any) -> Any:
    return generate_statistics(table(), options=options_from(options, schema=schema)).datasets[0]


def test_weight_sample_and_bucket_options_work() -> None:
    small = _dataset(num_top_values=2, num_histogram_buckets=3, sample_rate=0.1, weight_feature="digit")
    features = {feature.path.step[0]: feature for feature in small.features}
    assert 350 < small.num_examples < 650
    assert small.weighted_num_examples == pytest.approx(1.5 * small.num_examples, rel=0.15)
    assert len(features["letter"].string_stats.top_values) == 2
    assert len(features["number"].num_stats.histograms[0].buckets) == 3


def _twin(statistics: Any) -> str:
    return json.dumps(summarize(statistics), allow_nan=False)


def _of_options(**options: Any) -> str:
    return _twin(generate_statistics(table(), options=options_from(options)))


def test_unusual_values_are_strict_json() -> None:
    floats = np.arange(100.0)
    floats[:5], floats[5:8], floats[8] = np.nan, np.inf, -np.inf
    unusual = {
        "floats": floats,
        "only_nan": np.full(100, np.nan),
        "nothing": pa.nulls(100, pa.float64()),
        "untyped": pa.nulls(100),
        "bytes": pa.array([b"\xff\xfe"] * 30 + [b"plain"] * 70),
        "long": pa.array(["x" * 1000] * 60 + ["y" * 10_000] * 40),
        "several": pa.array([[1] * (i % 4) if i else None for i in range(100)]),
        "nested": pa.array([{"inside": i if i % 2 else None} for i in range(100)]),
        "extreme": pa.array([2**63 - 1, -(2**63)] * 50),
    }
    text = _twin(generate_statistics(pa.table(unusual)))
    twin = json.loads(text)
    features = twin["features"]
    assert twin["rows"] == 100
    floats = features["floats"]
    assert (floats["nan"], floats["infinite"], floats["max"], floats["min"]) == (5, 4, "inf", "-inf")
    assert sum(count for _, _, count in floats["histogram"]) == pytest.approx(95)
    assert features["only_nan"]["nan"] == 100
    assert features["nothing"] == {"type": "FLOAT", "count": 0, "missing": 100}
    assert features["untyped"]["missing"] == 100
    assert ["__BYTES_VALUE__", 30] in features["bytes"]["top_values"]
    long = features["long"]["top_values"]
    assert len(long) == 2 and all(len(value) <= 100 for value, _ in long)
    assert features["several"]["values_per_row"] == {"min": 0, "mean": pytest.approx(150 / 99), "max": 3}
    assert features["several"]["missing"] == 1
    assert features["nested"]["type"] == "STRUCT"
    assert (features["nested.inside"]["count"], features["nested.inside"]["missing"]) == (50, 50)
    assert features["extreme"]["max"] == pytest.approx(2.0**63)
    assert len(text) < 10_000


def test_weighted_statistics_stand_beside_those_of_rows() -> None:
    twin = json.loads(_of_options(weight_feature="digit", features=["digit", "letter", "number"]))
    weight = twin["weighted_rows"]
    letter, number = twin["features"]["letter"], twin["features"]["number"]
    assert weight == pytest.approx(1.5 * 5000, rel=0.05)
    assert letter["weighted"]["count"] == weight
    assert sum(count for _, count in letter["weighted"]["top_values"]) == weight
    assert sum(count for _, count in letter["top_values"]) == letter["count"] == 5000
    assert number["weighted"]["mean"] != number["mean"]
    assert number["weighted"]["mean"] == pytest.approx(number["mean"], abs=0.1)


def test_largest_slices_are_shown_and_the_others_counted() -> None:
    options = options_from({"slice_by": ["letter", "photo"], "features": ["letter", "photo", "number"]})
    twin = json.loads(_twin(generate_statistics(table().slice(0, 120), options=options)))
    slices = twin["slices"]
    assert next(iter(slices)).startswith("letter_") and len(slices) == 50
    assert twin["slices_left_out"] == 120 + 3 - 50
    assert sum(slices[f"letter_{one}"]["rows"] for one in "abc") == twin["rows"] == 120
    inside = slices["letter_a"]["features"]
    assert inside["letter"]["top_values"] == [["a", slices["letter_a"]["rows"]]]
    assert inside["number"]["mean"] > twin["features"]["number"]["mean"] + 0.3
    assert "histogram" not in inside["number"]


def test_domains_are_shown_and_many_features_are_shown_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = ["a quick brown fox jumps over the lazy dog and runs away"] * 200
    table = pa.table({"text": sentences, "number": [1.0, 2.0, 9.0, 9.0] * 50})
    statistics = generate_statistics(table, options=options_from({"semantic_domains": True}))
    features = summarize(statistics)["features"]
    assert features["text"]["custom"]["domain_info"] == "natural_language_domain {}"
    assert features["number"]["histogram"] and features["number"]["quantiles"]
    monkeypatch.setattr(summary, "MAX_FULL_FEATURES", 1)
    assert summarize(statistics)["features"]["number"] == {
        "type": "FLOAT", "count": 200, "missing": 0, "mean": 5.25, "std": pytest.approx(3.767, abs=1e-3), "min": 1,
        "max": 9, "median": 9, "zeros": 0,
    }  # fmt: skip
