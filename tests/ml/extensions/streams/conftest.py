"""Fixtures of topics, and of the monitors that read them."""

from tests.extensions.streams.kafka_brokers import mock_kafka, short_patience, stoppable_kafka, tansu  # noqa: F401
from tests.ml.performance.test_performance import deployed, record_of_champion, serve  # noqa: F401
from tests.ml.skew.test_skew import captured, detect, record  # noqa: F401
