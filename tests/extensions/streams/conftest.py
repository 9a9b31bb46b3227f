"""Fixtures of topics."""

from tests.extensions.streams.kafka_brokers import mock_kafka, short_patience, stoppable_kafka, tansu  # noqa: F401
