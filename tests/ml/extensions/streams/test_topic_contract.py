"""The contract of readers, for topics."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_hops.extensions.streams import TopicSource
from airflow_hops.extensions.streams.core.ranges import plan_ranges
from airflow_hops.testing.sources import ReaderContract, SourceContract
from tests.extensions.streams.kafka_brokers import Broker, as_json


class TestTopic(SourceContract, ReaderContract):
    fields = {"uri": "kafka://events", "offsets": {"0": [0, 3]}, "storage_conn_id": "kafka_events"}
    rows = 3

    @pytest.fixture
    def source(self, mock_kafka: Broker) -> TopicSource:
        mock_kafka.send("events", [(0, as_json(id=n)) for n in range(3)])
        return TopicSource("kafka://events", storage_options=mock_kafka.config, time_column="kafka_time")

    @pytest.fixture
    def plan(self, source: TopicSource) -> Any:
        return plan_ranges(source, (None, None)).to_dict()
