"""Hourly series of buildings with known drift, and how well a monitor's alarms show its onset and duration.

The question of D3Bench ("Open-Source Drift Detection Tools in Action: Insights from Two Use Cases", arXiv 2404.18673),
on generated data: temperature, occupancy and consumption with rhythms of day and week, seasons, holidays and
autocorrelated noise.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SEED = 51
YEAR_HOURS = 365 * 24
WINDOW_DAYS = 7
FEATURES = ("temperature", "occupancy", "consumption")
DRIFT_DAYS = {"abrupt": 42, "gradual": 56, "fault": 10}
"""Days that a drift of the second year's consumption lasts: a quarter more at once, up to 40% more, a stuck meter."""

Array = np.ndarray[Any, Any]


def _noise(random: np.random.Generator, hours: int, memory_h: float, deviation: float) -> Array:
    """Returns autoregressive noise of first order."""
    from scipy.signal import lfilter

    carry = np.exp(-1 / memory_h)
    steps = random.normal(0, deviation * np.sqrt(1 - carry**2), hours)
    return np.asarray(lfilter([1], [1, -carry], steps))


def draw_building(number: int) -> tuple[dict[str, Array], dict[str, int]]:
    """Draws two years of a building.

    Returns:
        Columns of :data:`FEATURES` and ``time`` (seconds), and the consumption under each of :data:`DRIFT_DAYS`; and
        the hour at which each drift begins.
    """
    random = np.random.default_rng([SEED, number])
    hours = np.arange(2 * YEAR_HOURS)
    hour, day = hours % 24, hours // 24
    season = np.cos(2 * np.pi * (day - 15) / 365)  # 1 in mid-January
    holiday = np.isin(day, np.concatenate([random.choice(365, 11, replace=False) + year for year in (0, 365)]))
    off = (day % 7 >= 5) | holiday
    temperature = 10 - 10 * season - 4 * np.cos(2 * np.pi * (hour - 3) / 24) + _noise(random, len(hours), 60, 3)
    at_work = np.clip(np.exp(-(((hour - 13) / random.uniform(3.5, 4.5)) ** 4)), 0.02, 1)
    away = np.where((day % 365 >= 195) & (day % 365 < 230), 0.8, 1.0)
    presence = np.exp(_noise(random, len(hours), 30, 0.12))
    occupancy = random.poisson(random.uniform(150, 400) * at_work * np.where(off, 0.08, 1) * away * presence)
    climate = 3 * np.clip(16 - temperature, 0, None) + 4 * np.clip(temperature - 22, 0, None)
    consumption = (random.uniform(40, 80) + 0.35 * occupancy + climate) * np.exp(_noise(random, len(hours), 20, 0.08))
    columns = {"time": hours * 3600, "temperature": temperature, "occupancy": occupancy, "consumption": consumption}
    begins = {}
    for name, days in DRIFT_DAYS.items():
        begins[name] = start = YEAR_HOURS + 24 * int(random.integers(30, 365 - days - 30))
        end = start + 24 * days
        changed = consumption.copy()
        if name == "abrupt":
            changed[start:end] *= 1.25
        elif name == "gradual":
            changed[start:end] *= np.linspace(1, 1.4, end - start)
        else:
            changed[start:end] = changed[start - 1]
        columns[name] = changed
    return columns, begins


def write_building(folder: Path, number: int) -> None:
    """Writes a building's columns as Parquet, and the hours at which its drifts begin as JSON."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns, begins = draw_building(number)
    pq.write_table(pa.table(columns), folder / f"building-{number}.parquet")
    (folder / f"building-{number}.json").write_text(json.dumps(begins))


def judge_building(folder: Path, number: int, judge: Callable[[Any], Callable[[Any], bool]]) -> dict[str, Any]:
    """Judges each window of a week that ends at a midnight of the second year, unchanged and under each drift.

    Args:
        folder: Where :func:`write_building` has put the building.
        number: Which building.
        judge: Takes the first year (``pyarrow.Table``), and returns what calls a window drifted or not.

    Returns:
        ``unchanged``: whether each window without a drift is called drifted; and for each drift what
        :func:`_alarm_of` returns.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(folder / f"building-{number}.parquet")
    begins: Mapping[str, int] = json.loads((folder / f"building-{number}.json").read_text())
    features = table.select(["time", *FEATURES])
    is_drifted = judge(features.slice(0, YEAR_HOURS))
    ends = range(YEAR_HOURS + 24 * WINDOW_DAYS, 2 * YEAR_HOURS + 1, 24)
    hours = 24 * WINDOW_DAYS
    unchanged = [is_drifted(features.slice(end - hours, hours)) for end in ends]
    alarms: dict[str, Any] = {}
    for name, days in DRIFT_DAYS.items():
        start, stop = begins[name], begins[name] + 24 * days
        changed = features.set_column(len(FEATURES), "consumption", table[name])
        called = [
            is_drifted(changed.slice(end - hours, hours)) if start < end < stop + hours else drifted
            for end, drifted in zip(ends, unchanged, strict=True)
        ]
        alarms[name] = _alarm_of(called, ends, start, stop)
    return {"unchanged": [bool(one) for one in unchanged], **alarms}


def _alarm_of(called: Sequence[bool], ends: Sequence[int], start: int, stop: int) -> dict[str, int | None]:
    """Returns the days from the onset to the first alarm, and how many days too long the alarm without a gap lasts.

    None and None if no window with a drifted hour is called drifted.
    """
    touching = [i for i, end in enumerate(ends) if start < end < stop + 24 * WINDOW_DAYS]
    first = next((i for i in touching if called[i]), None)
    if first is None:
        return {"late_days": None, "longer_days": None}
    began = ended = first
    while began > 0 and called[began - 1]:
        began -= 1
    while ended + 1 < len(called) and called[ended + 1]:
        ended += 1
    return {"late_days": (ends[first] - start) // 24, "longer_days": ended - began + 1 - (stop - start) // 24}


def figures_of(buildings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the share of unchanged windows called drifted, and the medians of each drift over the buildings."""
    unchanged = [one for building in buildings for one in building["unchanged"]]
    figures: dict[str, Any] = {
        "buildings": len(buildings),
        "windows": len(unchanged),
        "false_alarms": round(sum(unchanged) / len(unchanged), 4),
    }
    for name in DRIFT_DAYS:
        seen = [building[name] for building in buildings if building[name]["late_days"] is not None]
        figures[name] = {"found": len(seen)}
        for key in ("late_days", "longer_days"):
            figures[name][key] = statistics.median(one[key] for one in seen) if seen else None
    return figures


def lines_of(figures: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields drift, days, buildings in which it is found, days late and days too long, as texts."""
    for name, days in DRIFT_DAYS.items():
        one = figures[name]
        yield (
            name,
            str(days),
            f"{one['found']} of {figures['buildings']}",
            *("" if one[key] is None else f"{one[key]:g}" for key in ("late_days", "longer_days")),
        )
