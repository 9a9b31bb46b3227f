"""Options of statistics as a DAG states them: slices, weights, labels, pairs of features, samples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)

GOOD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"sample_rate": 0.5, "epsilon": 0.001}, {"sample_rate": 0.5, "epsilon": 0.001}),
    (
        {"num_top_values": 5, "num_rank_histogram_buckets": 7, "num_histogram_buckets": 8, "frequency_threshold": 2},
        {"num_top_values": 5, "num_rank_histogram_buckets": 7, "num_histogram_buckets": 8, "frequency_threshold": 2},
    ),
    (
        {"num_quantiles_histogram_buckets": 4, "num_values_histogram_buckets": 3},
        {"num_quantiles_histogram_buckets": 4, "num_values_histogram_buckets": 3},
    ),
    (
        {"semantic_domains": True, "semantic_domains_sample_rate": 0.2},
        {"enable_semantic_domain_stats": True, "semantic_domain_stats_sample_rate": 0.2},
    ),
    ({"features": ["a", "b"], "slice_by": ["a"]}, {"feature_allowlist": ["a", "b"]}),
    ({"weight_feature": "w"}, {"weight_feature": "w", "weight_of_a": "w"}),
    ({"per_feature_weight_override": {"a": "v"}}, {"weight_of_a": "v"}),
    ({"weight_feature": "w", "weighted_frequency_threshold": 2.5},
     {"weight_feature": "w", "weighted_frequency_threshold": 2.5, "weight_of_a": "w"}),
]  # fmt: skip

BAD: list[tuple[Any, str]] = [
    ({"slice": ["a"]}, "options has 'slice', expected some of cross_features, epsilon, features"),
    (["slice_by"], "options is ['slice_by'], expected a mapping"),
    ({"slice_by": "carrier"}, "options.slice_by is 'carrier', expected a list of features"),
    ({"slice_by": [["a", 1]]}, "options.slice_by is [['a', 1]], expected a list of features"),
    ({"slice_values": {"a": [1.5]}}, "options.slice_values is {'a': [1.5]}, expected a mapping from features to lists"),
    ({"sample_rate": 2}, "options.sample_rate is 2, expected a number above 0 and at most 1"),
    ({"sample_rate": "0.1"}, "options.sample_rate is '0.1', expected a number"),
    ({"epsilon": 1}, "options.epsilon is 1, expected a number above 0 and below 1"),
    ({"num_top_values": True}, "options.num_top_values is True, expected a whole number of at least 1"),
    ({"num_values_histogram_buckets": 1}, "options.num_values_histogram_buckets is 1, expected a whole number of at"),
    ({"semantic_domains": "yes"}, "options.semantic_domains is 'yes', expected true or false"),
    ({"semantic_domains_sample_rate": 0.5}, "without options.semantic_domains"),
    ({"cross_features": [["a", "a"]]}, "options.cross_features is [['a', 'a']], expected a list of pairs"),
    ({"cross_features": False}, "options.cross_features is False, expected a list of pairs"),
    ({"features": []}, "options.features is [], expected a list of names"),
    ({"lift": {}}, "options.lift is given without options.label_feature"),
    ({"label_feature": "y", "lift": {"top": 3}}, "options.lift has 'top', expected some of bottom_k_per_y, features"),
    (
        {"label_feature": "y", "lift": {"y_boundaries": [math.nan]}},
        "options.lift.y_boundaries is [nan], expected a list",
    ),
    ({"features": ["a"], "weight_feature": "w"}, "options.features has no 'w', which options.weight_feature needs"),
    ({"features": ["a"], "slice_by": [["a", "b"]]}, "options.features has no 'b', which options.slice_by needs"),
    ({"features": ["a"], "cross_features": [["a", "b"]]}, "has no 'b', which options.cross_features needs"),
]


def _check(name: str, run_step: Any, launcher: Any, **params: Any) -> Any:
    return run_step(f"option_checks:{name}", code_paths=CHECKS, launcher=launcher, params=params)


def test_options_are_told_to_tfdv(shared_run_step: Any, warm_launcher: Any) -> None:
    described = _check("describe", shared_run_step, warm_launcher, options=[options for options, _ in GOOD])
    assert described == [told for _, told in GOOD]


def test_an_option_that_cannot_be_is_named_with_what_can(shared_run_step: Any, warm_launcher: Any) -> None:
    described = _check("describe", shared_run_step, warm_launcher, options=[options for options, _ in BAD])
    for (options, words), said in zip(BAD, described, strict=True):
        assert words in said, options


def test_slices_hold_the_rows_that_they_name(shared_run_step: Any, warm_launcher: Any) -> None:
    slices = _check("slices", shared_run_step, warm_launcher)
    found, rows = slices["found"], slices["rows"]

    def expected(*keys: str) -> list[list[Any]]:
        return [["All Examples", 5000], *([key, rows[key]] for key in sorted(keys))]

    letters, digits = [f"letter_{x}" for x in "abc"], [f"digit_{d}" for d in range(4)]
    assert found["by_letter"] == expected(*letters)
    assert found["by_each"] == expected(*letters, *digits)
    assert found["crossed"] == expected(*(f"{digit}_{letter}" for digit in digits for letter in letters))
    assert found["some"] == expected("letter_a", "digit_3")
    assert found["crossed_with_some"] == expected(*(f"{digit}_letter_b" for digit in digits))


def test_correlations_equal_tfdv_where_its_sums_do_not_overflow(shared_run_step: Any, warm_launcher: Any) -> None:
    crosses = _check("crosses", shared_run_step, warm_launcher)
    ours, tfdv = crosses["ours"], crosses["tfdv"]
    assert ours.keys() == tfdv.keys()
    assert len(ours) == 28
    for pair, (count, covariance, correlation) in tfdv.items():
        assert ours[pair][0] == count > 0
        if "infinite" in pair and "several" not in pair:  # an example of several values is in no pair
            assert not math.isfinite(covariance) and math.isnan(ours[pair][1]) and ours[pair][2] == 0
        elif "constant" in pair:
            assert ours[pair][1:] == [0, 0]
        elif "seconds" not in pair:
            assert ours[pair][1:] == pytest.approx([covariance, correlation], rel=1e-5, abs=1e-6), pair
    assert ours["number seconds"][2] == pytest.approx(crosses["numpy"], abs=1e-6)
    assert abs(tfdv["number seconds"][2] - crosses["numpy"]) > 1e-3
    assert crosses["chosen"] == [[["number"], ["seconds"], 5000]]


def test_labels_weights_samples_and_buckets_do_what_they_say(shared_run_step: Any, warm_launcher: Any) -> None:
    found = _check("lift_and_more", shared_run_step, warm_launcher)
    assert found["lift"] == [["letter", [1, 1]], ["photo", [1, 1]]]
    positive = found["y_positive"]
    assert found["buckets"] == [[[-math.inf, 0, 5000 - positive], [0, math.inf, positive]]]
    assert 350 < found["rows"] < 650
    assert found["weight"] == pytest.approx(1.5 * found["rows"], rel=0.15)
    assert found["top"] == 2
    assert found["buckets_of_number"] == 3


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("cross_of_text", "cross_features: feature 'letter' is "),
        (
            "wide",
            "cross_features: there are 501 numeric features, and all pairs are taken of at most 500; name the pairs",
        ),
        ("absent_label", "label feature 'absent': there is no such column"),
        ("label_not_in_schema", "options.label_feature is 'y', which is not in the schema"),
    ],
)
def test_options_that_do_not_fit_the_data_are_named(said: Any, case: str, words: str) -> None:
    assert words in said[case]


@pytest.fixture(scope="module")
def said(shared_run_step: Any, warm_launcher: Any) -> Any:
    return _check("complaints", shared_run_step, warm_launcher)
