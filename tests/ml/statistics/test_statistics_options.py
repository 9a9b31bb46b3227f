"""Options of statistics as a DAG states them: slices, weights, labels, pairs of features, samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow_data_validation as tfdv
from option_tables import table
from tensorflow_data_validation.statistics.generators.cross_feature_stats_generator import CrossFeatureStatsGenerator

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.statistics.arrow_lists import as_lists
from airflow_hops.ml.statistics.cross_features import CrossFeatureGenerator
from airflow_hops.ml.statistics.options import options_from

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
    ({"slice": ["a"]}, "options has 'slice', expected some of cross_features, features"),
    ({"slice_by": "carrier"}, "options.slice_by is 'carrier', expected a list of features"),
    ({"slice_values": {"a": [1.5]}}, "options.slice_values is {'a': [1.5]}, expected a mapping from features to lists"),
    ({"sample_rate": 2}, "options.sample_rate is 2, expected a number above 0 and at most 1"),
    ({"num_top_values": True}, "options.num_top_values is True, expected a whole number of at least 1"),
    ({"num_values_histogram_buckets": 1}, "options.num_values_histogram_buckets is 1, expected a whole number of at"),
    ({"semantic_domains": "yes"}, "options.semantic_domains is 'yes', expected true or false"),
    ({"cross_features": [["a", "a"]]}, "options.cross_features is [['a', 'a']], expected a list of pairs"),
    ({"features": []}, "options.features is [], expected a list of names"),
    ({"lift": {}}, "options.lift is given without options.label_feature"),
    ({"label_feature": "y", "lift": {"top": 3}}, "options.lift has 'top', expected some of bottom_k_per_y, features"),
    ({"label_feature": "y", "lift": {"y_boundaries": [math.nan]}}, "options.lift.y_boundaries is [nan], expected a li"),
    ({"features": ["a"], "weight_feature": "w"}, "options.features has no 'w', which options.weight_feature needs"),
    ({"features": ["a"], "slice_by": [["a", "b"]]}, "options.features has no 'b', which options.slice_by needs"),
    ({"features": ["a"], "cross_features": [["a", "b"]]}, "has no 'b', which options.cross_features needs"),
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


def test_correlations_equal_tfdv_where_its_sums_do_not_overflow() -> None:
    whole = table()
    batches = [as_lists(batch) for batch in whole.to_batches(max_chunksize=700)]

    def of(generator: Any) -> dict[tuple[str, str], tuple[int, float, float]]:
        parts = [generator.add_input(generator.create_accumulator(), batch) for batch in batches]
        result = generator.extract_output(generator.merge_accumulators(parts))
        return {
            (cross.path_x.step[0], cross.path_y.step[0]): (
                cross.count, cross.num_cross_stats.covariance, cross.num_cross_stats.correlation,
            )
            for cross in result.cross_features
        }  # fmt: skip

    ours, theirs = of(CrossFeatureGenerator()), of(CrossFeatureStatsGenerator(sample_rate=1.0))
    assert ours.keys() == theirs.keys()
    assert len(ours) == 28
    for pair, (count, covariance, correlation) in theirs.items():
        assert ours[pair][0] == count > 0
        if "infinite" in pair and "several" not in pair:  # an example of several values is in no pair
            assert not math.isfinite(covariance) and math.isnan(ours[pair][1]) and ours[pair][2] == 0
        elif "constant" in pair:
            assert ours[pair][1:] == (0, 0)
        elif "seconds" not in pair:
            assert ours[pair][1:] == pytest.approx((covariance, correlation), rel=1e-5, abs=1e-6), pair
    pairs = whole.select(["number", "seconds"]).to_pandas()
    exact = float(np.corrcoef(pairs["number"], pairs["seconds"])[0, 1])
    assert ours["number", "seconds"][2] == pytest.approx(exact, abs=1e-6)
    assert abs(theirs["number", "seconds"][2] - exact) > 1e-3
    (chosen,) = _dataset(cross_features=[["seconds", "number"]]).cross_features
    assert (chosen.path_x.step[0], chosen.path_y.step[0], chosen.count) == ("number", "seconds", 5000)


def _dataset(schema: Any = None, **options: Any) -> Any:
    return generate_statistics(table(), options=options_from(options, schema=schema)).datasets[0]


def test_numeric_label_by_schema_has_lift() -> None:
    schema = tfdv.infer_schema(generate_statistics(table().slice(0, 100)))
    result = _dataset(schema, label_feature="y", lift={"top_k_per_y": 1})
    series = {cross.path_x.step[0]: cross.categorical_cross_stats.lift.lift_series for cross in result.cross_features}
    assert {name: [len(one.lift_values) for one in lift] for name, lift in series.items()} == {
        "letter": [1, 1], "photo": [1, 1],
    }  # fmt: skip


def test_label_weight_sample_and_bucket_options_work() -> None:
    buckets = _dataset(label_feature="number", lift={"y_boundaries": [0], "features": ["digit"]})
    (series,) = (cross.categorical_cross_stats.lift.lift_series for cross in buckets.cross_features)
    positive = int((table()["number"].to_numpy() >= 0).sum())
    assert [(one.y_bucket.low_value, one.y_bucket.high_value, one.y_count) for one in series] == [
        (-math.inf, 0, 5000 - positive), (0, math.inf, positive),
    ]  # fmt: skip
    small = _dataset(num_top_values=2, num_histogram_buckets=3, sample_rate=0.1, weight_feature="digit")
    features = {feature.path.step[0]: feature for feature in small.features}
    assert 350 < small.num_examples < 650
    assert small.weighted_num_examples == pytest.approx(1.5 * small.num_examples, rel=0.15)
    assert len(features["letter"].string_stats.top_values) == 2
    assert len(features["number"].num_stats.histograms[0].buckets) == 3


def test_options_incompatible_with_the_data_are_named() -> None:
    wide = pa.table({f"n{i}": pa.array([1.0, 2.0]) for i in range(501)})
    words = "cross_features: there are 501 numeric features; all pairs are computed for at most 500: name the pairs"
    with pytest.raises(BadInput, match=words):
        generate_statistics(wide, options=options_from({"cross_features": True}))
    with pytest.raises(BadInput, match="cross_features: feature 'letter' is "):
        _dataset(cross_features=[["y", "letter"]])
    letters = tfdv.infer_schema(generate_statistics(table().select(["letter"])))
    with pytest.raises(BadInput, match=r"options\.label_feature is 'y', which is not in the schema"):
        _dataset(letters, label_feature="y")
