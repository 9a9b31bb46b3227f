"""Lists: the number of values per row is compared, besides the values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from airflow_hops.ml.monitoring.skew.detect import detect_skew

pytestmark = pytest.mark.runtime


def lists(seed: int, *, empty: float = 0.1, least: int = 1, rows: int = 2000) -> pa.Table:
    """Lists of text and of numbers, of ``least`` to ``least + 3`` values, and a share of empty ones."""
    random = np.random.default_rng(seed)
    sizes = np.where(random.random(rows) < empty, 0, random.integers(least, least + 4, rows))
    columns = {"text": [list(random.choice(["a", "b", "c"], n)) for n in sizes]}
    columns["numbers"] = [random.normal(size=n).tolist() for n in sizes]
    return pa.table(columns, pa.schema({"text": pa.list_(pa.string()), "numbers": pa.list_(pa.float64())}.items()))


@pytest.mark.parametrize(("empty", "missing"), [(0.95, 0.9), (1.0, 1.0)])
def test_lists_that_become_empty_are_a_fault(empty: float, missing: float) -> None:
    report = detect_skew(lists(1), lists(2, empty=empty))
    assert (report.verdict, set(report.drifted)) == ("pipeline_fault", {"text", "numbers"})
    assert set(report.causes.values()) == {"missing_rate" if empty < 1 else "all_missing"}
    assert all(skew.missing_current >= missing for skew in report.features.values())


@pytest.mark.parametrize("alpha", [0.01, None])
def test_lists_that_become_longer_are_drift(alpha: float | None) -> None:
    thresholds = {"text": 0.5, "numbers": 0.5}
    report = detect_skew(lists(1), lists(2, least=3), alpha=alpha, thresholds={} if alpha else thresholds, min_rows=100)
    assert (report.verdict, set(report.drifted)) == ("drift", {"text", "numbers"})
    assert report.features["text"].detail == "a row has 4.11 values on average, and 2.23 in the reference"


def test_unchanged_lists_are_stable() -> None:
    for seed in range(10):
        assert detect_skew(lists(seed), lists(seed + 100, rows=300)).verdict == "stable", seed
