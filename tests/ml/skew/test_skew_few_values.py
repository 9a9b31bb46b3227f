"""Drift of columns with few different values, of rare values and of spikes, however the values are stored."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import fisher_exact

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.monitoring.skew import detect_skew
from airflow_hops.ml.monitoring.skew.distribution import distribution
from airflow_hops.ml.schemas import infer_schema
from airflow_hops.ml.stages.validation import list_anomalies, validate_statistics
from airflow_hops.ml.statistics import comparable_options, generate_statistics
from airflow_hops.ml.statistics.number_counts import KEPT, Counts
from airflow_hops.ml.statistics.summary import features_by_name

pytestmark = pytest.mark.runtime

ROWS = 20_000


def table(seed: int, *, frequent: float = 0.3, rare: float = 0.0015, rows: int = ROWS) -> pa.Table:
    """Columns of few values, and columns with a rare value."""
    random = np.random.default_rng(seed)
    is_frequent, is_rare = random.random(rows) < frequent, random.random(rows) < rare
    grade = np.where(is_frequent, 5, random.integers(1, 5, rows))
    normal = random.normal(size=rows)
    return pa.table(
        {
            "flag": pa.array(is_frequent),
            "flag_as_integer": is_frequent.astype(int),
            "flag_as_float": pa.array(is_frequent.astype(float), mask=random.random(rows) < 0.1),
            "grade": grade,
            "grade_as_float": grade.astype(float),
            "grade_as_text": [f"grade {value}" for value in grade],
            "rare_flag": is_rare.astype(int),
            "rare_category": np.where(is_rare, "rare", np.where(normal > 0, "common", "usual")),
            "placeholder": np.where(is_rare, -999.0, normal),
            "mostly_zero": np.where(is_rare, np.exp(normal), 0.0),
            "rare_infinity": np.where(is_rare, np.inf, normal),
            "normal": random.normal(size=rows),
        }
    )


RARE = ("rare_flag", "rare_category", "placeholder", "mostly_zero", "rare_infinity")
FEW = ("flag", "flag_as_integer", "flag_as_float", "grade", "grade_as_float", "grade_as_text")


@cache
def statistics(seed: int, *, by_default: bool = False, **shares: Any) -> Any:
    return generate_statistics(table(seed, **shares), options=None if by_default else comparable_options())


@pytest.mark.parametrize("by_schema", [True, False], ids=["with the schema's thresholds", "by p-values alone"])
def test_columns_of_few_values_drift_like_text(by_schema: bool) -> None:
    reference, current = statistics(1), statistics(2, frequent=0.7)
    report = detect_skew(reference, current, schema=infer_schema(reference) if by_schema else None)
    for name in FEW:
        skew = report.features[name]
        assert (skew.drifted, skew.measure) == (True, "l_infinity"), name
        assert skew.score == pytest.approx(0.4, abs=0.02), name
    assert not report.features["normal"].drifted


@pytest.mark.parametrize("name", ["flag", "flag_as_integer", "grade"])
def test_integers_of_few_values_are_known_from_tfdvs_histograms(name: str) -> None:
    reference, current = statistics(1, by_default=True), statistics(2, by_default=True, frequent=0.7)
    skew = detect_skew(reference, current, schema=infer_schema(reference)).features[name]
    assert (skew.drifted, skew.measure) == (True, "l_infinity")
    assert skew.score == pytest.approx(0.4, abs=0.02)


def test_a_rare_value_that_becomes_more_frequent_is_significant() -> None:
    reference, current = statistics(1), statistics(2, rare=0.0126)
    report = detect_skew(reference, current)
    ones = [int(np.sum(table(seed, **rare)["rare_flag"])) for seed, rare in ((1, {}), (2, {"rare": 0.0126}))]
    exact = fisher_exact([[count, ROWS - count] for count in ones]).pvalue
    assert exact < 1e-30
    for name in RARE:
        skew = report.features[name]
        assert skew.drifted, name
        assert skew.p_value is not None and skew.p_value < exact * 1e6, name
    assert set(report.drifted) == set(RARE)


@pytest.mark.parametrize("rows", [100, 1000, ROWS])
def test_unchanged_columns_of_few_and_rare_values_are_stable(rows: int) -> None:
    for seed in range(10):
        report = detect_skew(statistics(1), statistics(100 + seed, rows=rows))
        assert report.verdict == "stable", report.drifted


def test_p_values_of_rare_values_are_not_too_small() -> None:
    p_values = [
        skew.p_value
        for seed in range(20)
        for skew in detect_skew(statistics(1), statistics(100 + seed, rows=1000)).features.values()
    ]
    # They are corrected for the number of features, by which none is smaller than it was.
    assert sum(p is not None and p <= 0.1 for p in p_values) <= 0.02 * len(p_values)


def test_numbers_that_fill_a_gap_between_few_are_drift() -> None:
    random = np.random.default_rng(3)
    whole, fractions = random.integers(1, 6, 5000).astype(float), random.uniform(1, 5, 5000)
    report = detect_skew(pa.table({"x": whole}), pa.table({"x": fractions}))
    assert report.drifted == ("x",)


def test_validation_finds_drift_of_few_numbers() -> None:
    reference, same, current = statistics(1), statistics(3), statistics(2, frequent=0.7)
    schema = infer_schema(reference)
    moved = list_anomalies(validate_statistics(current, schema, previous=reference), "train")
    for name in FEW:
        (anomaly,) = [one for one in moved if one.feature == name]
        assert (anomaly.types, anomaly.severity) == (("COMPARATOR_L_INFTY_HIGH",), "warning"), name
    unmoved = list_anomalies(validate_statistics(same, schema, previous=reference), "train")
    assert not {one.feature for one in unmoved}.intersection(FEW)
    anomalies = validate_statistics(current, schema, previous=reference)
    scores = {info.path.step[0]: info.drift_measurements[0].value for info in anomalies.drift_skew_info}
    assert scores["grade"] == pytest.approx(scores["grade_as_text"])


def test_a_threshold_of_shares_is_refused_for_many_different_numbers() -> None:
    reference = statistics(1)
    schema = infer_schema(reference, comparators={"grade": {"infinity_norm": 0.5}, "flag": {"jensen_shannon": 0.1}})
    assert not detect_skew(reference, statistics(2, frequent=0.7), schema=schema).features["grade"].drifted
    with pytest.raises(BadInput, match=r"infinity_norm is for strings, and for numbers of at most 20 different values"):
        infer_schema(reference, comparators={"normal": {"infinity_norm": 0.1}})


def test_counts_of_parts_add_up_to_those_of_the_whole() -> None:
    random = np.random.default_rng(5)
    spread = np.where(random.random(200_000) < 0.02, 7.5, random.normal(size=200_000))
    few = random.integers(0, 3, 200_000).astype(float)
    for numbers, complete in ((spread, False), (few, True)):
        parts = [Counts.of(part) for part in np.split(numbers, 20)]
        merged = parts[0]
        for part in parts[1:]:
            merged = merged.merged(part)
        listed = merged.listed()
        assert (listed.complete, len(merged.values) <= KEPT) == (complete, True)
        for value, count in zip(listed.values, listed.counts, strict=True):
            assert 0 <= np.sum(numbers == value) - count <= listed.error
        assert (7.5 in listed.values) == (not complete)


def test_lists_and_vectors_have_no_counts() -> None:
    lists = pa.table({"list": [[1.0] * (1 + row % 3) for row in range(300)], "vector": [[1.0, 2.0]] * 300})
    features = features_by_name(generate_statistics(lists, options=comparable_options()))
    assert distribution(features["list"]).frequent is None
