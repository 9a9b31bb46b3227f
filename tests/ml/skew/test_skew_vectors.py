"""Drift of vectors: how often it is called where there is none, what is found, and the samples that it is judged by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from campaigns import campaign
from scipy import stats
from tensorflow_metadata.proto.v0 import statistics_pb2

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.distances.measures import compare
from airflow_hops.ml.distances.sides import Vectors
from airflow_hops.ml.features.feature_specs import read_raw_features
from airflow_hops.ml.readers.vectors import dense_vectors, finite_vectors
from airflow_hops.ml.schema import infer_schema
from airflow_hops.ml.schema_files import to_text
from airflow_hops.ml.skew import detect_skew
from airflow_hops.ml.skew.attribution import restore
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.statistics.feature_figures import feature_detail, feature_table

WIDTH = 6


def column(vectors: Any) -> pa.Array:
    return pa.array([None if each is None else list(each) for each in vectors], pa.list_(pa.float32()))


def rows(vectors: Any) -> pa.Table:
    return pa.table({"vector": column(vectors), "number": np.arange(len(vectors)) % 7.0})


def normal(random: np.random.Generator, count: int, correlation: float = 0.0) -> Any:
    covariance = np.full((WIDTH, WIDTH), correlation)
    np.fill_diagonal(covariance, 1.0)
    return random.normal(size=(count, WIDTH)) @ np.linalg.cholesky(covariance).T


def heavy(random: np.random.Generator, count: int) -> Any:
    """Vectors of few different ones, and of numbers whose scales and tails differ."""
    result = random.standard_t(2, size=(count, WIDTH)) * 10.0 ** np.arange(WIDTH)
    result[random.random(count) < 0.5] = np.eye(WIDTH)[0]
    return result


def p_value(one: Any, other: Any) -> float:
    return compare(Vectors(np.float32(one)), Vectors(np.float32(other)), np.random.default_rng(0)).p_value


@pytest.mark.parametrize("draw", [normal, heavy])
@campaign("samples", 60, 400)
def test_false_alarm_rate_of_vectors_equals_alpha(draw: Any, samples: int) -> None:
    random = np.random.default_rng(5)
    results = [p_value(draw(random, 90), draw(random, 60)) for _ in range(samples)]
    for alpha in (0.01, 0.05, 0.25):
        assert sum(p <= alpha for p in results) <= stats.binom.ppf(0.999, samples, alpha)
    # They are no larger than they should be, either.
    assert sum(p <= 0.25 for p in results) >= stats.binom.ppf(0.001, samples, 0.25)


def test_vector_shift_and_joint_change_are_found() -> None:
    random = np.random.default_rng(7)
    shifted, correlated = [], []
    for _ in range(3):
        old = normal(random, 400)
        shifted.append(p_value(old, normal(random, 300) + 0.3))
        new = normal(random, 300, 0.35)
        correlated.append(p_value(old, new))
    assert max(shifted) < 0.01 and max(correlated) < 0.01
    # Each number by itself is distributed as before.
    assert min(stats.ks_2samp(old[:, k], new[:, k]).pvalue for k in range(WIDTH)) > 0.05


@pytest.mark.slow
def test_vector_p_value_is_repeatable_beside_other_features() -> None:
    random = np.random.default_rng(2)
    old, new = rows(normal(random, 1500)), rows(normal(random, 1200, 0.5))
    report = detect_skew(old, new)
    assert report.drifted == ("vector",) and report.verdict == "drift"
    result = report.features["vector"]
    assert (result.measure, result.cause, list(result.scores)) == (
        "maximum_mean_discrepancy", "covariate_shift", [],
    )  # fmt: skip
    assert result.score is not None and result.threshold is not None and result.score > result.threshold > 0
    # Adjusted for four tests: of the values and the missing ones of two features.
    assert result.p_value is not None and result.p_value < 0.01
    assert sum(bucket[2] for bucket in result.common_histogram) == pytest.approx(1, abs=1e-4)
    assert report == detect_skew(old, new)
    assert detect_skew(old, rows(normal(random, 1200))).verdict == "stable"
    assert detect_skew(old, new, alpha=None, min_rows=10, thresholds={"vector": 0.9}).verdict == "stable"
    assert detect_skew(old, new, alpha=None, min_rows=10, thresholds={"vector": 0.01}).drifted == ("vector",)


def test_vectors_of_other_lengths_are_compared_as_lists() -> None:
    old = rows(normal(np.random.default_rng(2), 300))
    for new in (np.zeros((50, WIDTH + 1)), [[0.0] * (1 + row % 2) for row in range(50)]):
        vector = detect_skew(old, rows(new), min_rows=10).features["vector"]
        assert vector.drifted and "values per row, 6 in the reference" in str(vector.summary)
    with pytest.raises(BadInput, match=r"'vector', a vector, has no threshold.*give thresholds"):
        detect_skew(old, rows(np.zeros((50, WIDTH))), alpha=None)


def test_schema_sets_vector_length_and_comparison(tmp_path: Any) -> None:
    result = infer_schema(generate_statistics(rows(normal(np.random.default_rng(1), 50))))
    (feature,) = [feature for feature in result.feature if feature.name == "vector"]
    assert (feature.value_count.min, feature.value_count.max) == (WIDTH, WIDTH)
    assert feature.HasField("drift_comparator") and not feature.drift_comparator.ListFields()
    (tmp_path / "schema.pbtxt").write_text(to_text(result))
    columns = {"label": "number", "key": None, "time": None}
    assert read_raw_features(tmp_path / "schema.pbtxt", **columns) == {"vector": "float32[6]"}
    feature.shape.dim.add(size=WIDTH)
    (tmp_path / "schema.pbtxt").write_text(to_text(result))
    assert read_raw_features(tmp_path / "schema.pbtxt", **columns) == {"vector": "float32[6]"}
    feature.value_count.min, feature.value_count.max = 5, 6
    (tmp_path / "schema.pbtxt").write_text(to_text(result))
    with pytest.raises(BadInput, match="'vector' is FLOAT, 5 to 6 values a row; expected one value, or vectors"):
        read_raw_features(tmp_path / "schema.pbtxt", **columns)
    statistics = generate_statistics(rows(normal(np.random.default_rng(1), 50)))
    with pytest.raises(BadInput, match="TFDV has no measure of vectors; expected distance"):
        infer_schema(statistics, comparators={"vector": {"jensen_shannon": 0.3}})


def test_restored_vectors_match_reference_means_and_covariances() -> None:
    random = np.random.default_rng(4)
    reference, values = normal(random, 8_000), normal(random, 8_000, 0.6) * 2 + 3
    reference[:800], values[:3200] = np.nan, np.nan
    result = restore(values, reference, random)
    there = ~np.isnan(result).any(axis=1)
    assert there.mean() == pytest.approx(0.9, abs=1e-3)
    np.testing.assert_allclose(result[there].mean(axis=0), 0, atol=0.08)
    np.testing.assert_allclose(np.cov(result[there].T), np.eye(WIDTH), atol=0.08)
    unchanged = normal(random, 8_000)
    assert np.nanmean(np.abs(restore(unchanged, reference, random) - unchanged)) < 0.03
    constant = restore(np.zeros((2000, WIDTH)), reference, random)
    drawn = constant[~np.isnan(constant).any(axis=1)]
    assert len(drawn) == 1800 and len(np.unique(drawn, axis=0)) > 1500
    np.testing.assert_allclose(np.cov(drawn.T), np.eye(WIDTH), atol=0.15)


def test_lists_become_matrices_and_invalid_vectors_are_missing() -> None:
    for kind in (pa.list_(pa.float64()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 2)):
        array = pa.array([[9, 9], [1, 2], None, [3, float("nan")]], kind).slice(1)
        dense = dense_vectors(array, "x", 2, "file")
        np.testing.assert_array_equal(dense, [[1, 2], [np.nan] * 2, [3, np.nan]])
        assert finite_vectors(array).to_pylist() == [[1, 2], None, None]
    with pytest.raises(BadInput, match="file: column 'x' has 1 numbers in 2 of 3 rows, row 2 the first; expected vec"):
        dense_vectors(pa.array([[1.0, 2.0], [1.0], [1.0]]), "x", 2, "file")


def test_pages_show_the_norms_of_a_vector_and_its_length() -> None:
    vectors = [[3.0, 4.0]] * 50 + [[0.0, 0.0]] * 50
    sample = pa.table({"vector": column([*vectors, None, [np.nan, 1.0]])})
    statistics = generate_statistics(pa.table({"vector": column(vectors)}))
    (dataset,) = statistics.datasets
    line = feature_table(dataset, weighted=False, sample=sample)
    assert (line.types, line.values_per_row, line.mean) == (["FLOAT[2]"], [2], [2.5])
    low, high, shares = line.histogram[0] or (None, None, [])
    assert (low, high, shares[0], shares[-1], sum(shares)) == (0, 5, 5000, 5000, 10_000)
    assert feature_table(dataset, weighted=False).mean == [1.75]
    shown = feature_detail(dataset.features[0], 100, weighted=False, sample=sample)
    assert shown.custom == {"Distribution shown": "norms of 100 vectors of 2 numbers, a sample"}
    assert shown.values_per_row == (2, 2, 2)
    assert statistics_pb2.DatasetFeatureStatisticsList.FromString(statistics.SerializeToString()) == statistics
