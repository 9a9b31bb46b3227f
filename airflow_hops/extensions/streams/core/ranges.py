"""Plans which offsets of a topic become a snapshot, and records the plan in the store.

A window of time takes, of each partition, the records from the first one at its start or later up to the first one at
its end or later. Windows that touch share this offset, so every record is in exactly one of their snapshots, also if
records are not in the order of their times. A record that arrives after its window was planned belongs to the next
window: a plan begins where the recorded plan of the window before it ends. No plan goes beyond that of a later window,
which may have been made first.

``<store>/_state/tasks/<dag>/<task>/ranges/<table>-<digest>/<start>_<end>.json`` is a plan, which never changes.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from operator import itemgetter
from typing import Any

from airflow_hops.core.artifacts.artifact import Producer, segment
from airflow_hops.core.errors import BadInput, HopsError, UnreadableFile
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.store.plans import Plans
from airflow_hops.core.store.task_state import task_state
from airflow_hops.core.times import sortable, window_time
from airflow_hops.extensions.streams.core.source import TopicSource
from airflow_hops.extensions.streams.core.topic import Topic
from airflow_hops.extensions.streams.core.topic_ranges import TopicRanges


def recorded_ranges(
    store: ArtifactStore, producer: Producer, table: str, source: TopicSource, window: tuple[str | None, str | None]
) -> TopicRanges:
    """Returns the ranges that were planned for a table and window, or plans and records them.

    A window without an end is planned for each run, since "now" is its end; other windows once for all runs of a task.

    Args:
        store: The artifact store.
        producer: The task instance.
        table: The table's name.
        source: The topic, with the options of its connection.
        window: Start and end, ISO 8601, UTC without a zone.

    Raises:
        BadInput: the topic cannot be read, or records of the window have expired.
        HopsError: no broker answers.
    """
    start, end = (window_time(name, text) for name, text in zip(("window_start", "window_end"), window, strict=True))
    identity = json.dumps([source.uri, source.offsets], sort_keys=True)
    plans = Plans(store, f"{task_state(store, producer, 'ranges')}/{segment(f'{table}-{_digest(identity)}')}")

    def plan() -> dict[str, Any]:
        bounds = [name.removesuffix(".json").split("_") for name in store.names(plans.folder) if name.endswith(".json")]
        earlier = [each for each in bounds if start and each[1] <= _name(start)]
        later = [each for each in bounds if end and "first" > each[0] >= _name(end)]
        nearest = max(earlier, key=itemgetter(1), default=None), min(later, key=itemgetter(0), default=None)
        plans_near = (_read(plans, f"{'_'.join(each)}.json") if each else None for each in nearest)
        return plan_ranges(source, (start, end), *plans_near).to_dict()

    of_run = source.offsets is not None or end is None
    name = f"{_name(start)}_{f'run-{_digest(producer.run_id)}' if of_run else _name(end)}.json"
    plans.first(name, plan)
    return _read(plans, name)


def plan_ranges(
    source: TopicSource,
    window: tuple[datetime | None, datetime | None],
    preceding: TopicRanges | None = None,
    following: TopicRanges | None = None,
) -> TopicRanges:
    """Plans the ranges of a window.

    Args:
        source: The topic, with librdkafka's configuration in ``storage_options``.
        window: Start and end in UTC; ignored if the source has ``offsets``.
        preceding: Plan of the last window that ends at the start or before.
        following: Plan of the first window that begins at the end or later.

    Raises:
        BadInput: a partition does not exist, or records of the window have expired.
        HopsError: no broker answers.
    """
    with Topic(source.uri, source.storage_options) as topic:
        partitions, topic_id = topic.partitions(), topic.topic_id()
        if source.offsets is not None:
            if unknown := sorted(set(map(int, source.offsets)) - set(partitions)):
                raise BadInput(f"topic {topic.name!r} has no partition {unknown[0]}; it has {_few(partitions)}")
            ranges = {partition: tuple(bounds) for partition, bounds in source.offsets.items()}
            return TopicRanges(topic.name, topic_id, None, ranges)  # type: ignore[arg-type]
        # Offsets of a former topic with this name do not apply.
        preceding, following = (plan if plan and plan.topic_id == topic_id else None for plan in (preceding, following))
        bounds = {
            str(partition): (
                _start(topic, partition, window[0], preceding),
                _end(topic, partition, window[1], following),
            )
            for partition in partitions
        }
        texts = tuple(time.isoformat() if time else None for time in window)
        offsets = {partition: (start, max(start, end)) for partition, (start, end) in bounds.items()}
        if following is not None:  # it may have been planned before records of this window came
            for partition in offsets.keys() & following.offsets.keys():
                most = following.offsets[partition][0]
                start, end = offsets[partition]
                offsets[partition] = (min(start, most), min(end, most))
        return TopicRanges(topic.name, topic_id, None if texts == (None, None) else texts, offsets)  # type: ignore[arg-type]


def check_stored(topic: Topic, ranges: TopicRanges) -> None:
    """Checks that a topic still holds all planned offsets.

    Raises:
        BadInput: records have expired, or the topic was created again; the message names partition and offsets.
        HopsError: the topic is shorter than planned, or a transaction is open.
    """
    now_id = topic.topic_id()
    if ranges.topic_id and now_id and now_id != ranges.topic_id:
        raise BadInput(
            f"topic {topic.name!r} was deleted and created again after its offsets were planned (its id was "
            f"{ranges.topic_id} and is {now_id}); clear the plans below _state/tasks/<dag>/<task>/ranges of the store, "
            "and restore the records if they are needed"
        )
    partitions = topic.partitions()
    for partition, (start, end) in ranges.offsets.items():
        if int(partition) not in partitions:
            raise BadInput(
                f"topic {topic.name!r} was created again: partition {partition}, of which offsets {start} to {end - 1} "
                f"were planned, does not exist; it has {_few(partitions)}"
            )
        if start == end:
            continue
        low, high = topic.bounds(int(partition))
        if low > start:
            raise BadInput(
                f"topic {topic.name!r}, partition {partition}: offsets {start} to {min(low, end) - 1} have expired; "
                f"the first stored one is {low}. Ingest sooner, raise the topic's retention, or name the remaining "
                "offsets in the source's 'offsets'"
            )
        if high < end:
            raise HopsError(
                f"topic {topic.name!r}, partition {partition}: offsets {start} to {end - 1} were planned, but "
                f"it ends at {high}; the topic shrank or was created again, or a transaction is open"
            )


def _start(topic: Topic, partition: int, time: datetime | None, earlier: TopicRanges | None) -> int:
    low, high = topic.bounds(partition)
    # A partition created after the previous plan has no earlier records.
    least = 0 if earlier is None else earlier.offsets.get(str(partition), (0, 0))[1]
    if earlier is not None and earlier.window and _is_at(time, earlier.window[1]):
        return least
    if time is None:
        return low
    offset = topic.offset_at(partition, _milliseconds(time))
    start = high if offset is None else offset
    if 0 < low == start:
        raise BadInput(
            f"topic {topic.name!r}, partition {partition}: offsets before {low} have expired, and may belong to the "
            f"window from {time.isoformat()}. Begin the window later, omit window_start to take what is left, or name "
            "the offsets in the source's 'offsets'"
        )
    return max(start, least)


def _end(topic: Topic, partition: int, time: datetime | None, after: TopicRanges | None) -> int:
    if after is not None and after.window and _is_at(time, after.window[0]) and str(partition) in after.offsets:
        return after.offsets[str(partition)][0]
    offset = None if time is None else topic.offset_at(partition, _milliseconds(time))
    return topic.bounds(partition)[1] if offset is None else offset


def _read(plans: Plans, name: str) -> TopicRanges:
    try:
        return TopicRanges.from_dict(plans.store.read_json(plans.uri(name)))
    except (TypeError, ValueError) as error:
        raise UnreadableFile(
            plans.uri(name), f": not a plan of a topic's offsets ({error}); restore or remove it"
        ) from error


def _milliseconds(time: datetime) -> int:
    """Returns milliseconds since the epoch, rounded up: a record's time has no smaller parts."""
    return -int(-time.timestamp() * 1000 // 1)


def _is_at(time: datetime | None, bound: str | None) -> bool:
    return time is not None and bound is not None and sortable(bound) == _name(time)


def _name(time: datetime | None) -> str:
    return "first" if time is None else sortable(time.isoformat())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _few(partitions: list[int]) -> str:
    return f"{len(partitions)} partitions" + (f", 0 to {partitions[-1]}" if partitions else "")
