"""Windows of the runs of a DAG that scores tables, by their data interval or their partition."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

from croniter import croniter  # type: ignore[import-untyped]  # of Airflow

from airflow_hops.core.errors import BadInput
from airflow_hops.core.times import as_utc
from airflow_hops.operators.base import partition_key

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_TICKS = 300
_LONGEST = {
    "%Y": timedelta(days=366),
    "%Y-%m": timedelta(days=31),
    "%Y-%m-%d (W%W)": timedelta(days=7),
    "%Y-%m-%d": timedelta(days=1),
    "%Y-%m-%dT%H": timedelta(hours=1),
}
"""The longest partition, by the layout of the keys of Airflow's mappers; months and years end with a month."""


@dataclass(frozen=True)
class RunWindow:
    """Window of the rows that a run scores.

    Attributes:
        start: ISO 8601; empty if the run has no window, and all rows of the source are scored.
        end: The same; rows at this moment are outside.
        key: Name of the window in tables and asset events: the run's partition key, or ``start|end``.
    """

    start: str = ""
    end: str = ""
    key: str = ""


def run_window(dag_run: Any, schedule: Any, *, has_time: bool) -> RunWindow:
    """Returns the window of a run. Those of one schedule are equal or have no rows in common.

    Args:
        dag_run: The run, as in the context of a task.
        schedule: Timetable of the DAG: the keys of a ``CronPartitionTimetable`` end with its next one, and the windows
            of a ``timedelta`` begin at its multiples since 1970, UTC, where Airflow rounds scheduled runs to, too.
        has_time: Whether rows are selected by a time: if not, a run without an interval takes all of them.

    Raises:
        BadInput: the run has neither an interval nor a partition, or its key does not say when the partition ends.
    """
    if dag_run.partition_key is not None:
        return RunWindow(*_partition(dag_run.partition_key, schedule), dag_run.partition_key)
    bounds = dag_run.data_interval_start, dag_run.data_interval_end
    if None in bounds and has_time:
        raise BadInput(
            f"run {dag_run.run_id!r} has neither a data interval nor a partition, so that it is unknown which rows to "
            "score; trigger the DAG with a logical date or a partition key"
        )
    if None in bounds or (bounds[0] == bounds[1] and not has_time):
        return RunWindow()
    delta = getattr(schedule, "delta", None)
    if isinstance(delta, timedelta) and bounds[1] - bounds[0] == delta:  # ends now, if triggered by hand
        first = _EPOCH + (as_utc(bounds[0].isoformat()) - _EPOCH) // delta * delta
        bounds = first, first + delta
    start, end = (bound.isoformat() for bound in bounds)
    return RunWindow(start, end, partition_key((start, end)))


def _partition(key: str, schedule: Any) -> tuple[str, str]:
    if "|" in key:  # of an asset of this package
        start, _, end = key.partition("|")
        if start and end:
            return start, end
    zone = _zone(schedule)
    start, end = (time.replace(tzinfo=zone).astimezone(UTC).isoformat() for time in _local_times(key, schedule))
    return start, end


def _local_times(key: str, schedule: Any) -> tuple[datetime, datetime]:
    """Returns when a partition begins and ends, in the schedule's zone."""
    with suppress(ValueError):
        if hasattr(schedule, "key_format"):
            first = datetime.strptime(key, schedule.key_format).replace(tzinfo=None)
            return first, croniter(schedule.expression, first).get_next(datetime)
    for layout, longest in _LONGEST.items():
        with suppress(ValueError):
            first = datetime.strptime(key, layout)
            last = first + longest
            return first, last.replace(day=1) if longest > timedelta(days=7) else last
    raise BadInput(
        f"partition key {key!r} does not say when the partition begins and ends; expected such as 2026-11-01, which "
        "StartOfDayMapper makes of others, or start and end as 2026-11-01T00:00:00|2026-11-02T00:00:00"
    )


def _zone(schedule: Any) -> tzinfo:
    """Returns the zone of a timetable's keys: its own, or that of the mapper that makes them."""
    mappers = getattr(schedule, "partition_mapper_config", {}).values()
    parts = [schedule, *mappers, getattr(schedule, "default_partition_mapper", None)]
    parts += [getattr(part, "upstream_mapper", None) for part in parts]  # of a roll-up
    # Airflow 3.3: a mapper's zone has no public name.
    zones = (getattr(part, "timezone", None) or getattr(part, "_timezone", None) for part in parts)
    zone = next(filter(None, zones), "UTC")
    return ZoneInfo(zone) if isinstance(zone, str) else zone


def silent_after(schedule: Any) -> timedelta | None:
    """Returns how long a monitor waits for rows: twice the longest time between two runs, and three days or more.

    None without a time schedule, as nobody knows when the next rows come.
    """
    if hasattr(schedule, "delta"):
        now = datetime.now(UTC)
        longest: timedelta = now + schedule.delta - now
    elif hasattr(schedule, "expression"):
        ticks = list(islice(croniter(schedule.expression, datetime(2026, 1, 1)).all_next(datetime), _MOST_TICKS))
        longest = max(later - earlier for earlier, later in pairwise(ticks))
    else:
        return None
    return max(2 * longest, timedelta(days=3))
