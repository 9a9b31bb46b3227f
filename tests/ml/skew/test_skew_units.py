"""Growth is drift and a conversion of units is a fault: rates over random columns and changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from changed_columns import Changed, conversions, world_changes
from scipy import stats

from airflow_hops.core.contract.skew import SkewTest
from airflow_hops.ml.monitoring.skew import detect_skew
from airflow_hops.ml.monitoring.skew.decide import Judged, decide
from airflow_hops.ml.monitoring.skew.sides import alike
from airflow_hops.ml.schemas import infer_schema
from airflow_hops.ml.statistics import generate_statistics

LONG = [pytest.param(rows, 1000, marks=pytest.mark.scheduled(part="campaigns")) for rows in (300, 1_500, 10_000)]


def is_fault(column: Changed) -> bool:
    """Returns whether the monitor calls a change a fault."""
    samples = [pa.table({column.name: values}) for values in (column.reference, column.current)]
    judged = Judged.of(partial(alike, samples, column.name, width=None, seed=0), 0.05, 0)
    return decide({column.name: judged}, SkewTest())[column.name].fault


def count_faults(changes: Callable[[int, int, int], Iterator[Changed]], rows: int, count: int) -> int:
    return sum(is_fault(column) for column in changes(3, count, rows))


@pytest.mark.parametrize(("rows", "count"), [(300, 60), (1_500, 60), (10_000, 30), *LONG])
def test_growth_is_rarely_a_fault(rows: int, count: int) -> None:
    limit = 0.01 * count if count >= 1_000 else stats.binom.ppf(0.95, count, 0.01)
    assert count_faults(world_changes, rows, count) <= limit


@pytest.mark.parametrize(("rows", "count"), [(300, 60), (1_500, 60), (10_000, 30), *LONG])
def test_most_conversions_of_units_are_faults(rows: int, count: int) -> None:
    assert count_faults(conversions, rows, count) >= 0.9 * count


@pytest.mark.parametrize(
    ("name", "unit", "factor", "cause"),
    [
        ("waiting_minutes", "", 1.852, "covariate_shift"),
        ("way", "", 1.852, "covariate_shift"),
        ("way", "nautical", 1.852, "unit_change"),
        ("way", "knot", 1.609344, "covariate_shift"),
        ("wayInKm", "", 1 / 1.609344, "unit_change"),
        ("KM_DRIVEN", "", 1 / 1.609344, "unit_change"),
        ("km_driven", "", 1.609344, "covariate_shift"),
    ],
)
def test_unit_is_read_from_name_or_schema(name: str, unit: str, factor: float, cause: str) -> None:
    random = np.random.default_rng(4)
    before, now = (pa.table({name: random.gamma(6, 10, rows)}) for rows in (4_000, 1_500))
    schema = infer_schema(generate_statistics(before))
    if unit:
        schema.feature[0].annotation.tag.append(f"unit:{unit}")
    converted = pa.table({name: now[name].to_numpy() * factor})
    assert detect_skew(before, converted, schema=schema).causes == {name: cause}
