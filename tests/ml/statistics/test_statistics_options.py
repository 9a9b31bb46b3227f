"""Options of statistics as a DAG states them: slices, weights, samples."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow_data_validation as tfdv
from option_tables import table

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.statistics import generate_statistics
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
