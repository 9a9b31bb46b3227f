"""Wrong times in a few rows change neither the compared period nor a verdict; times in any form are read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_skew_detect import weeks

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.distances.times import seconds_of, usual_period
from airflow_hops.ml.distances.windows import compare_windows
from airflow_hops.ml.readers.rows_file import RowsFile
from airflow_hops.ml.skew import detect_skew
from airflow_hops.ml.skew.fetch import read_span

DAY = 86_400
NOW = 1_372_636_800
"""2013-07-01, a Monday."""


def at(year: int, month: int = 1, day: int = 1) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp())


WRONG = [0, -1, 1, at(1), at(1900), at(1970, 1, 2), at(1999, 12, 31), at(2012), at(2099), at(9999), NOW * 1_000, -NOW]
PERIODS = {"an hour": 3_600, "a weekend": 2 * DAY, "a week": 7 * DAY, "a year": 365 * DAY}


@given(
    period=st.sampled_from([*PERIODS.values()]),
    rows=st.integers(100, 2_000),
    wrong=st.lists(st.sampled_from(WRONG), min_size=1, max_size=20),
    burst=st.booleans(),
    seed=st.integers(0, 1_000),
)
def test_wrong_times_are_left_out(period: int, rows: int, wrong: list[int], burst: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    spread = random.beta(0.3, 3, rows) if burst else random.random(rows)
    times = np.sort(NOW + (period * spread).astype(int))
    wrong = wrong[: max(1, rows // 100)]
    everything, counts = np.unique(np.append(times, wrong), return_counts=True)
    assert usual_period(everything.astype(float), counts) == (times[0], times[-1])


@given(st.lists(st.integers(0, 400), min_size=1, max_size=60), st.integers(1, 100))
def test_ordinary_gaps_are_no_wrong_times(days: list[int], rows: int) -> None:
    """Times of up to a year, each with more than a hundredth of the rows, stay together unless months are between."""
    times = np.unique(np.minimum(days, 28) * DAY).astype(float)
    assert usual_period(times, np.full(len(times), rows)) == (times[0], times[-1])


def captured(path: Path, times: Any) -> RowsFile:
    moments = pa.array(np.full(len(times), (NOW + 3 * DAY) * 10**6), pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"version": np.full(len(times), 1), "captured_at": moments, "input.at": times}), path)
    return RowsFile.at(path)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_captured_period_ignores_wrong_times(tmp_path: Path, wrong: int) -> None:
    times = NOW + np.arange(0, 2 * DAY, 600)
    good = captured(tmp_path / "good.parquet", times)
    both = [good, captured(tmp_path / "wrong.parquet", np.array([times[3], wrong, times[0], times[-1]]))]
    span, wrong_times, example = read_span(both, "at")
    alone = read_span([good], "at")[0]
    assert (span.window_start, span.window_end) == (alone.window_start, alone.window_end)
    assert wrong_times == 1 and example is not None and abs(example - wrong) < DAY


FORMS: dict[str, Any] = {
    "seconds": lambda seconds: seconds,
    "timestamps": lambda seconds: seconds.cast(pa.timestamp("s")).cast(pa.timestamp("ns", "UTC")),
    "text with Z": lambda seconds: pc.strftime(seconds.cast(pa.timestamp("s")), "%Y-%m-%dT%H:%M:%SZ"),
    "text with an offset": lambda seconds: pc.strftime(seconds.cast(pa.timestamp("s")), "%Y-%m-%d %H:%M:%S+00:00"),
    "text without a zone": lambda seconds: pc.strftime(seconds.cast(pa.timestamp("s")), "%Y-%m-%d %H:%M"),
}  # fmt: skip


def test_verdict_is_that_without_wrong_times() -> None:
    year, week = weeks(0, 30), weeks(28, 1)

    def with_first(table: pa.Table, time: int | None) -> pa.Table:
        seconds = pa.array(table["hour"].to_numpy() + (0 if time is None else NOW))
        if time is not None:
            seconds = pa.array(np.append(time, seconds.to_numpy()[1:]))
        return table.set_column(0, "hour", FORMS["text with an offset"](seconds))

    base = [with_first(table, NOW + int(table["hour"][0].as_py())) for table in (year, week)]
    expected = detect_skew(*base, time="hour")
    assert "windows of 6.96 days" in expected.notes[0] and expected.verdict == "stable"
    for wrong in (0, -1, at(1971), at(2099)):
        for sides in ((with_first(year, wrong), base[1]), (base[0], with_first(week, wrong))):
            report = detect_skew(*sides, time="hour")
            assert (report.verdict, "windows of 6.9" in report.notes[0]) == ("stable", True), report.notes


def test_times_of_any_form_are_read_and_bad_ones_are_named() -> None:
    seconds = pa.array([NOW, NOW + 60, -3_600])
    for form, written in FORMS.items():
        assert seconds_of(pa.table({"t": written(seconds)}), "t").tolist() == seconds.to_pylist(), form
    texts = ["2013-07-01T02:00:00+02:00", "2013-07-01T00:00:00Z", "2013-07-01 00:00", "2013-07-01", "", None]
    assert np.nan_to_num(seconds_of(pa.table({"t": texts}), "t")).tolist() == [NOW] * 4 + [0] * 2
    for column in (pa.array(["yesterday"]), pa.array([[1]]), pa.array([""])):
        with pytest.raises(BadInput, match="column 't'"):
            seconds_of(pa.table({"t": column}), "t")


def shares_of(shares: list[float], days: int = 1, rows: int = 200, start: int = 0) -> pa.Table:
    """Windows of some days one after the other, in each of which a share of the rows has another value."""
    seconds = [
        np.linspace(0, days * DAY - 1, rows) + NOW + (start + number) * days * DAY for number in range(len(shares))
    ]
    values = [np.arange(rows) < share * rows for share in shares]
    return pa.table({"at": np.concatenate(seconds), "x": np.concatenate(values).astype(float)})


def nearest(reference: pa.Table, current: pa.Table) -> Any:
    """Returns the distance to the nearest window and the allowed one; None if there are too few windows."""
    times = current["at"].to_numpy()
    distances, _ = compare_windows(("at", times[0], times[-1] + 1), reference, current, {"x": None})
    return distances["x"]["values"] if distances else None


def test_windows_of_the_reference_count_as_documented() -> None:
    usual = [0.5] * 5
    assert nearest(shares_of([*usual, 0.6]), shares_of([0.7], start=9)) == pytest.approx((0.1, 1.5 * 0.1))
    assert nearest(shares_of([*usual, 1.0]), shares_of([0.7], start=9)) == pytest.approx((0.2, 0.5 + 0.5 / 2))
    assert nearest(shares_of(usual[:3]), shares_of([0.7], start=9)) is None, "four windows at least"
    assert nearest(shares_of(usual[:4]), shares_of([0.7], start=9)) is not None
    assert nearest(shares_of(usual, rows=48), shares_of([0.5], start=9)) is None, "of 50 rows each"
    assert nearest(shares_of(usual, rows=50), shares_of([0.5], start=9)) is not None


@pytest.mark.parametrize(("weeks_before", "distance"), [(4, 0.0), (5, 0.6)])
def test_windows_up_to_28_days_away_are_of_the_same_season(weeks_before: int, distance: float) -> None:
    shares = [0.2] * 54
    shares[54 - weeks_before] = 0.8
    nearest_one = nearest(shares_of(shares, days=7), shares_of([0.8], days=7, start=54))
    assert nearest_one[0] == pytest.approx(distance)
