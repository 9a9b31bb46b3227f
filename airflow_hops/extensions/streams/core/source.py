"""Source of a Kafka topic's records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_hops.core.errors import BadInput
from airflow_hops.core.names import check_known
from airflow_hops.core.sources.sources import RowSource

VALUE_FORMATS = ("json", "avro")


@dataclass(frozen=True)
class TopicSource(RowSource):
    """The source of a Kafka topic's records, which the window selects by their time in Kafka.

    Attributes:
        uri: ``kafka://topic``.
        time_column: Column by which the window also selects rows; None to use only Kafka's time.
        columns: Columns to use; None for all.
        schema: Types of columns that should not be inferred, as of :class:`~airflow_hops.operators.Source`.
        format: Format of the values: ``json`` or ``avro``; None is JSON, or the schema registry's if
            there is one.
        offsets: First offset and the one after the last, by partition, instead of the window.
        may_be_empty: Whether a window without records becomes a table without rows, as of captured requests; otherwise
            the ingest fails.
        allow_gaps: Whether records that compaction has removed may be missing.
        storage_options: librdkafka's configuration. Airflow stores it with the task's rendered fields, so put
            credentials into a connection.
        storage_conn_id: Connection of type ``kafka``; by default ``kafka_default``, unless there are
            ``storage_options``.
    """

    schemes = ("kafka",)
    connection_options = "airflow_hops.extensions.streams.hooks:kafka_options_of"
    planner = "airflow_hops.extensions.streams.hooks:plan"
    reader = "airflow_hops.extensions.streams.ml.ingest:ingest_topic"
    format: str | None = field(default=None, kw_only=True)
    offsets: Mapping[str, tuple[int, int]] | None = field(default=None, kw_only=True)
    allow_gaps: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.storage_conn_id is None and not self.storage_options:
            object.__setattr__(self, "storage_conn_id", "kafka_default")
        if self.format is not None:
            check_known(f"source {self.uri!r}: format", self.format, VALUE_FORMATS)
        for partition, bounds in (self.offsets or {}).items():
            if not (
                str(partition).isdecimal()
                and isinstance(bounds, list | tuple)
                and len(bounds) == 2
                and all(type(each) is int for each in bounds)
                and 0 <= bounds[0] <= bounds[1]
            ):
                raise BadInput(
                    f"source {self.uri!r}: offsets has {partition!r}: {bounds!r}; expected the number of a partition "
                    'and its first offset and the one after the last, like {"0": [1200, 3400]}'
                )
