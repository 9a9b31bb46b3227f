"""Quantiles, top values and numbers of distinct values: exact while they fit, near beyond that."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from airflow_hops.ml.statistics import combiners
from airflow_hops.ml.statistics.quantiles import FEATURE_VALUES, SLICE_VALUES, Quantiles, values_per_feature
from airflow_hops.ml.statistics.top_values import Frequencies

ROWS = 60_000
DRAWS = {
    "normal": lambda random: random.normal(size=ROWS),
    "integers": lambda random: random.integers(-(2**62), 2**62, ROWS),
    "few": lambda random: random.integers(0, 20, ROWS),
    "ascending": lambda random: np.arange(float(ROWS)),
}


def _merged(kind: str, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values = DRAWS[kind](np.random.default_rng(1))
    first, second = Quantiles(most), Quantiles(most)
    for number, batch in enumerate(np.array_split(values, [1, 900, 10_000, 30_000, 50_000])):
        (first if number < 3 else second).AddValues(pa.array(batch))
    first.Merge(pickle.loads(pickle.dumps(second)))
    quantiles, weights = first.GetQuantilesAndCumulativeWeights(100)
    return np.sort(values), quantiles.flatten().to_numpy(), weights.flatten().to_numpy()


@pytest.mark.parametrize("kind", DRAWS)
def test_quantiles_are_exact_while_values_fit_and_near_when_thinned(kind: str) -> None:
    ordered, quantiles, weights = _merged(kind, ROWS)
    assert np.array_equal(quantiles, ordered[np.minimum(np.arange(101) * ROWS // 100, ROWS - 1)])
    values = ordered[np.minimum(np.arange(101) * ROWS // 100, ROWS - 1)]
    assert np.array_equal(weights, np.searchsorted(ordered, values, "right"))
    ordered, quantiles, _ = _merged(kind, 4000)
    assert (quantiles[0], quantiles[-1]) == (ordered[0], ordered[-1])
    low, high = np.searchsorted(ordered, quantiles, "left"), np.searchsorted(ordered, quantiles, "right")
    # Thinned to 1,000 values each time that 4,000 are exceeded.
    ranks = np.arange(101) * ROWS // 100
    assert np.maximum(low - ranks, ranks - high).max() <= ROWS / 500


def test_weights_move_quantiles_and_zero_weights_do_not_count() -> None:
    summary = Quantiles(10)
    summary.AddValues(pa.array([5.0, 1.0, 3.0, 1.0]), pa.array([2.0, 0.5, 0.0, 1.5]))
    quantiles, weights = summary.GetQuantilesAndCumulativeWeights(4)
    assert quantiles.to_pylist() == [[1.0, 1.0, 5.0, 5.0, 5.0]]
    assert weights.to_pylist() == [[2.0, 2.0, 4.0, 4.0, 4.0]]


def _counted(batches: Sequence[list[bytes]], most: int) -> Frequencies:
    first, second = Frequencies(most), Frequencies(most)
    for number, batch in enumerate(batches):
        (first if number % 2 else second).add(pa.array(batch, pa.binary()), np.ones(len(batch)))
    first.merge(pickle.loads(pickle.dumps(second)))
    return first


@pytest.mark.parametrize("most", [ROWS, 8000])
def test_frequent_values_have_exact_counts(most: int) -> None:
    random = np.random.default_rng(5)
    batches = [[b"%d" % value for value in random.zipf(1.2, 5000) % 40_000] for _ in range(8)]
    expected = Counter(value for batch in batches for value in batch)
    frequencies = _counted(batches, most)
    listed = [(value.feature_value, value.count) for value in frequencies.most_frequent(50)]
    assert listed == sorted(expected.items(), key=lambda item: (item[1], item[0]), reverse=True)[:50]
    assert frequencies.unique() == pytest.approx(len(expected), rel=0 if most == ROWS else 0.03)


@pytest.mark.parametrize("most", [8000, 1000])
def test_large_and_binary_values_count_together_and_are_distinct(most: int) -> None:
    plain, binary = [b"%d" % i for i in range(3000)], [b"\xff%d" % i for i in range(1500)]
    large = [b"x" * 2000 + b"%d" % i for i in range(500)] * 2
    frequencies = _counted([plain, binary, large], most)
    assert frequencies.unique() == pytest.approx(5000, rel=0)
    top = [(value.feature_value, value.count) for value in frequencies.most_frequent(3)]
    assert top[:2] == [(b"__BYTES_VALUE__", 1500), (b"__LARGE_BYTES__", 1000)]


def test_values_of_a_single_batch_are_summed_also_where_most_differ() -> None:
    random = np.random.default_rng(2)
    values = random.integers(0, 10_000, 20_000)
    summary, texts = Quantiles(ROWS), Frequencies(ROWS)
    summary.AddValues(pa.array(values))
    texts.add(pa.array(values), np.ones(len(values), np.int64))
    for merged in (summary, pickle.loads(pickle.dumps(summary))):
        quantiles, weights = merged.GetQuantilesAndCumulativeWeights(4)
        assert quantiles.flatten().to_pylist() == np.sort(values)[[0, 5_000, 10_000, 15_000, 19_999]].tolist()
        assert weights.flatten()[-1].as_py() == len(values)
    expected = Counter(map(str, values.tolist()))
    assert texts.unique() == len(expected)
    assert {each.feature_value.decode(): each.count for each in texts.most_frequent(10**5)} == expected


def test_texts_of_a_slice_are_kept_without_those_of_its_table() -> None:
    table, texts = pa.array([f"{number:064d}" for number in range(ROWS)]), Frequencies(ROWS)
    texts.add(table[:2048], np.ones(2048, np.int64))
    assert len(pickle.dumps(texts)) < 2 * 2048 * (64 + 16)


def test_zeros_of_either_sign_are_one_value() -> None:
    summary = Quantiles(ROWS)
    for zeros in ([-0.0, 0.0], [0.0, -0.0]):
        summary.AddValues(pa.array(zeros))
    quantiles, weights = summary.GetQuantilesAndCumulativeWeights(2)
    assert (str(quantiles.to_pylist()), weights.to_pylist()) == ("[[0.0, 0.0, 0.0]]", [[4.0, 4.0, 4.0]])


def test_values_kept_depend_on_the_columns_alone() -> None:
    assert values_per_feature([pa.float64()] * 16) == FEATURE_VALUES
    assert (
        values_per_feature([pa.struct([("a", pa.list_(pa.int64())), ("b", pa.string())])] * 16) == FEATURE_VALUES // 2
    )
    assert values_per_feature([pa.float64()] * 100_000) == SLICE_VALUES


def test_tree_is_the_same_for_merged_runs_of_powers_of_two() -> None:
    shapes = combiners.Combiners.__new__(combiners.Combiners)
    shapes.merge = lambda one, other: (one, other)  # type: ignore[assignment, method-assign, return-value]
    for count in range(1, 40):
        whole = shapes.merge_tree(range(count))  # type: ignore[arg-type]
        for size in (2, 8):
            runs = [shapes.merge_tree(range(start, min(start + size, count))) for start in range(0, count, size)]  # type: ignore[arg-type]
            assert shapes.merge_tree(runs) == whole
