"""The part of a Kafka topic that becomes a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.json_fields import JsonFields

TOPIC_SCHEME = "kafka://"
REJECTED_FOLDER = "rejected"
"""Folder of a snapshot with a topic's records that cannot be decoded."""
VALUE_FORMATS = ("json", "avro", "protobuf")
TYPES_HEADER = "hops-types"
"""Header of a captured row's message, with the Arrow types of the members of its JSON object, separated by ``;``."""


@dataclass(frozen=True)
class TopicRanges(JsonFields):
    """Closed ranges of a topic's offsets, planned once and read again by every retry.

    Attributes:
        topic: Name of the topic.
        topic_id: Id that Kafka gave the topic when it was created; None if the brokers do not report ids.
        window: Window of time for which the ranges were planned, ``[start, end)`` in ISO 8601 UTC; None for explicit
            offsets or the whole topic.
        offsets: First offset, and the offset after the last one, by partition.
    """

    topic: str
    topic_id: str | None = None
    window: tuple[str | None, str | None] | None = None
    offsets: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def check_offsets(uri: str, offsets: Mapping[str, tuple[int, int]] | None) -> None:
    """Raises BadInput unless a source's ``offsets`` map partitions to ranges."""
    for partition, bounds in (offsets or {}).items():
        if not (
            str(partition).isdecimal()
            and isinstance(bounds, list | tuple)
            and len(bounds) == 2
            and all(type(each) is int for each in bounds)
            and 0 <= bounds[0] <= bounds[1]
        ):
            raise BadInput(
                f"source {uri!r}: offsets has {partition!r}: {bounds!r}; expected the number of a partition and its "
                'first offset and the one after the last, like {"0": [1200, 3400]}'
            )
