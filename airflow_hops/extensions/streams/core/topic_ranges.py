"""The part of a Kafka topic that becomes a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_hops.core.json_fields import JsonFields

TOPIC_SCHEME = "kafka://"


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
