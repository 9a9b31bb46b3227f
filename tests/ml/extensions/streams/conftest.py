"""Fixtures of topics, and of the monitors that read them."""

from tests.extensions.streams.kafka_brokers import mock_kafka, short_patience, stoppable_kafka, tansu  # noqa: F401
