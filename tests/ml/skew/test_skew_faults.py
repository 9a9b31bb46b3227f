"""Short windows, ids, values that come, and retried requests are no faults; stuck and rewritten columns are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_hops.ml.monitoring.skew import detect_skew

DAY_NAMES = np.array(["mon", "tue", "wed", "thu", "fri", "sat", "sun"])
MONTH_NAMES = np.array([f"{number}th" for number in range(1, 13)])


def calendar(first_hour: int, hours: int, rows: int) -> dict[str, Any]:
    """Columns that the time sets, of rows at random times."""
    hour = first_hour + np.random.default_rng(first_hour).integers(0, hours, rows)
    day = hour // 24
    month, weekday = np.minimum(day % 365 // 30, 11), day % 7
    return {
        "weekend": weekday >= 5, "is_weekday": (weekday < 5).astype(int), "weekday": weekday,
        "weekday_name": DAY_NAMES[weekday], "month": month + 1, "month_name": MONTH_NAMES[month], "hour": hour % 24,
        "day_of_month": day % 30 + 1, "week": day % 365 // 7, "day": day, "date": [f"day {each}" for each in day],
        "rush": (hour % 24 < 9).astype(float), "shift_number": hour % 24 // 8,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "hours", "rows"), [(9_005, 1, 300), (8_904, 48, 500), (9_600, 24, 480), (9_120, 336, 900)]
)
def test_columns_that_the_time_sets_drift_in_short_windows(first: int, hours: int, rows: int) -> None:
    report = detect_skew(pa.table(calendar(0, 365 * 24, 20_000)), pa.table(calendar(first, hours, rows)))
    assert report.verdict == "drift", report


@pytest.mark.parametrize("each", [1, 2, 3, 5, 10, 30])
def test_new_ids_drift_unless_they_are_rewritten(each: int) -> None:
    before, new = (pa.table({"x": [f"Id{i // each}" for i in range(n, m)]}) for n, m in ((0, 6_000), (6_000, 7_200)))
    assert detect_skew(before, new).verdict in ("drift", "stable")
    rewritten = pa.table({"x": [value.upper() + " " for value in before["x"].to_pylist()[:1_200]]})
    assert each == 1 or detect_skew(before, rewritten).causes == {"x": "new_category"}  # of once, none is like another
    placeholder = pa.table({"x": [value if i % 4 else "unknown" for i, value in enumerate(new["x"].to_pylist())]})
    assert detect_skew(before, placeholder).causes == {"x": "new_category"}


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        (1.0, 0.0, "drift"),
        (1.0, 0.5, "drift"),
        (0.9, 0.1, "drift"),
        (0.1, 0.9, "pipeline_fault"),
        (0, 1, "pipeline_fault"),
    ],
)
def test_values_that_come_are_no_fault_and_those_that_go_are(before: float, now: float, verdict: str) -> None:
    random = np.random.default_rng(0)
    normal = random.normal(size=3_000)
    sides = [
        pa.table({"x": pa.array(normal[:rows], mask=random.random(rows) < share), "y": normal[:rows]})
        for rows, share in ((3_000, before), (1_500, now))
    ]
    assert detect_skew(*sides).verdict == verdict


def mixed(seed: int, rows: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "number": random.normal(size=rows), "amount": random.lognormal(size=rows), "grade": random.integers(0, 5, rows),
        "word": np.array(["x", "y", "z"])[random.integers(0, 3, rows)],
    }  # fmt: skip


def test_retried_requests_count_once() -> None:
    reference = pa.table(mixed(0, 20_000))
    for seed in range(1, 11):
        rows = {name: np.repeat(values, 10) for name, values in mixed(seed, 200).items()}
        report = detect_skew(reference, pa.table(rows))
        assert (report.verdict, report.rows_current) == ("stable", 2_000)
        assert report.notes[0].startswith("1,800 of 2,000 rows repeat others")
        assert detect_skew(reference, pa.table(rows | {"amount": rows["amount"] + 2})).drifted == ("amount",)
    default = {name: np.where(np.arange(2_000) % 5, values, values[0]) for name, values in mixed(3, 2_000).items()}
    assert detect_skew(reference, pa.table(default)).notes == ()
    few = [pa.table({name: mixed(seed, 2_000)[name] for name in ("grade", "word")}) for seed in (1, 2)]
    assert detect_skew(*few).notes == ()


STUCK = [
    ("number", lambda values: np.full(len(values), 0.25), "constant"),
    ("word", lambda values: np.full(len(values), "x"), "constant"),
    ("word", lambda values: np.char.upper(values), "new_category"),
    ("grade", lambda values: np.where(values == 1, 1, 1), "covariate_shift"),
]


@pytest.mark.parametrize(("name", "change", "cause"), STUCK)
def test_stuck_and_rewritten_columns_are_faults(name: str, change: Any, cause: str) -> None:
    reference, now = mixed(0, 5_000), mixed(1, 1_500)
    report = detect_skew(pa.table(reference), pa.table(now | {name: change(now[name])}))
    assert report.causes == {name: cause}
    nothing = {each: np.full(1_500, values[0]) for each, values in now.items()}
    assert Counter(detect_skew(pa.table(reference), pa.table(nothing)).causes.values())["constant"] == 3
