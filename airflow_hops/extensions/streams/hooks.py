"""Plans the offsets of topics that an ingest reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_hops.extensions.streams.core.ranges import recorded_ranges
from airflow_hops.extensions.streams.core.source import TopicSource
from airflow_hops.runner.connections import required_connection, with_storage_options
from airflow_hops.runner.sources import Planning


def kafka_options_of(conn_id: str) -> dict[str, object]:
    """Returns librdkafka's configuration: the extra of a connection of type ``kafka``. Raises BadInput without one."""
    return required_connection("storage_conn_id", conn_id, "kafka")[1]


def plan(sources: Mapping[str, TopicSource], planning: Planning) -> dict[str, Any]:
    """Returns the offsets of each topic, as :class:`~airflow_hops.runner.sources.Planner`."""
    return {
        table: recorded_ranges(planning.hook.store, planning.producer, table, source, planning.window).to_dict()
        for table, source in with_storage_options(sources).items()
    }
