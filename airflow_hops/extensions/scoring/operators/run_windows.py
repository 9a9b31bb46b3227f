"""Windows of the runs of a DAG that scores tables, by their data interval or their partition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

from airflow_hops.core.errors import BadInput
from airflow_hops.operators.base import partition_key

_MOST_TICKS = 300
_SHAPES = (
    (re.compile(r"(\d{4})"), timedelta(days=366)),
    (re.compile(r"(\d{4})-Q([1-4])"), timedelta(days=92)),
    (re.compile(r"(\d{4})-(\d\d)"), timedelta(days=31)),
    (re.compile(r"(\d{4})-(\d\d)-(\d\d) \(W\d\d\)"), timedelta(days=7)),
    (re.compile(r"(\d{4})-(\d\d)-(\d\d)"), timedelta(days=1)),
    (re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d)"), timedelta(hours=1)),
)
"""Keys that Airflow's mappers of times make, and the longest partition of each; months and longer end with a month."""


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


def run_window(dag_run: Any, schedule: Any, partition_length: timedelta | None, *, has_time: bool) -> RunWindow:
    """Returns the window of a run.

    Args:
        dag_run: The run, as in the context of a task.
        schedule: Timetable of the DAG: the keys of a ``CronPartitionTimetable`` end with its next one.
        partition_length: Length of partitions whose keys do not tell it.
        has_time: Whether rows are selected by a time: if not, a run without an interval takes all of them.

    Raises:
        BadInput: the run has neither an interval nor a partition, or its partition key is not a time, or one of unknown
            length.
    """
    if dag_run.partition_key is not None:
        start, end = _partition(dag_run.partition_key, schedule, partition_length)
        return RunWindow(start, end, dag_run.partition_key)
    bounds = dag_run.data_interval_start, dag_run.data_interval_end
    if None in bounds and has_time:
        raise BadInput(
            f"run {dag_run.run_id!r} has neither a data interval nor a partition, so that it is unknown which rows to "
            "score; trigger the DAG with a logical date or a partition key"
        )
    if None in bounds or (bounds[0] == bounds[1] and not has_time):
        return RunWindow()
    start, end = (bound.isoformat() for bound in bounds)
    return RunWindow(start, end, partition_key((start, end)))


def _partition(key: str, schedule: Any, length: timedelta | None) -> tuple[str, str]:
    if "|" in key:  # of an asset of this package
        start, _, end = key.partition("|")
        return start, end
    try:
        first, last = _local_times(key, schedule)
    except ValueError as error:
        raise BadInput(
            f"partition key {key!r} is not a time ({error}); expected one, such as 2026-11-01, or start and end as "
            "2026-11-01T00:00:00|2026-11-02T00:00:00. Write a DAG of the operators for other partitions"
        ) from None
    if length is not None:
        last = first + length
    if last is None:
        raise BadInput(
            f"partition key {key!r} says when the partition begins, not when it ends; give the loop "
            "score={'partition_length': timedelta(…)}"
        )
    zone = _zone(schedule)
    start, end = (time.replace(tzinfo=time.tzinfo or zone).astimezone(UTC).isoformat() for time in (first, last))
    return start, end


def _local_times(key: str, schedule: Any) -> tuple[datetime, datetime | None]:
    """Returns when a partition begins and ends, in the schedule's zone; None for the end if the key does not tell it.

    Raises:
        ValueError: the key is not a time.
    """
    if hasattr(schedule, "key_format"):
        first = datetime.strptime(key, schedule.key_format)  # the zone is added later
        return first, next(_ticks(schedule.expression, first.replace(tzinfo=None)))
    for pattern, longest in _SHAPES:
        if match := pattern.fullmatch(key):
            numbers = [int(text) for text in match.groups()]
            if "Q" in key:
                numbers[1] = 3 * numbers[1] - 2
            first = datetime(*numbers, *[1] * (3 - len(numbers)))  # type: ignore[arg-type]
            last = first + longest
            return first, last.replace(day=1) if longest >= timedelta(days=28) else last
    return datetime.fromisoformat(key), None


def _zone(schedule: Any) -> tzinfo:
    """Returns the zone of a timetable's keys: its own, or that of the mapper that makes them."""
    mappers = getattr(schedule, "partition_mapper_config", {}).values()
    parts = [schedule, *mappers, getattr(schedule, "default_partition_mapper", None)]
    parts += [getattr(part, "upstream_mapper", None) for part in parts]  # of a roll-up
    # Airflow 3.3: a mapper's zone has no public name.
    zones = (getattr(part, "timezone", None) or getattr(part, "_timezone", None) for part in parts)
    zone = next(filter(None, zones), "UTC")
    return ZoneInfo(zone) if isinstance(zone, str) else zone


def _ticks(expression: str, first: datetime) -> Iterator[datetime]:
    """Yields the times of a cron expression after a local time."""
    from croniter import croniter  # type: ignore[import-untyped]  # of Airflow

    ticks = croniter(expression, first)
    while True:
        yield ticks.get_next(datetime)


def silent_after(schedule: Any) -> timedelta | None:
    """Returns how long a monitor waits for rows: twice the longest time between two runs, and three days or more.

    None without a time schedule, as nobody knows when the next rows come.
    """
    if hasattr(schedule, "delta"):
        now = datetime.now(UTC)
        longest: timedelta = now + schedule.delta - now
    elif hasattr(schedule, "expression"):
        ticks = list(islice(_ticks(schedule.expression, datetime(2026, 1, 1)), _MOST_TICKS))
        longest = max(later - earlier for earlier, later in pairwise(ticks))
    else:
        return None
    return max(2 * longest, timedelta(days=3))
