"""A Kafka topic, read through librdkafka without a consumer group: nothing is committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.extensions.streams.core.topic_ranges import TOPIC_SCHEME

TIMEOUT_S = 30.0
ADMIN_TIMEOUT_S = 10.0
"""Seconds for questions that brokers may not be able or allowed to answer: the topic's id and policy."""
REGISTRY_PREFIX = "schema.registry."
"""Start of the names of the options that are for the client of the schema registry."""

_FORCED = {
    "enable.auto.commit": False,
    "auto.offset.reset": "error",  # librdkafka would otherwise skip expired records silently
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}
_FINAL_ERRORS = frozenset(
    (
        *("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_EXCEPTION", "_INVALID_ARG"),
        *("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION"),
    )
)


class Topic:
    """A topic of one cluster, open within a ``with`` statement.

    Args:
        uri: ``kafka://topic``.
        options: librdkafka's configuration; names that begin with ``schema.registry.`` are ignored here.

    Attributes:
        name: The topic's name.
        consumer: librdkafka's consumer.

    Raises:
        BadInput: the URI or the configuration cannot be used, or confluent-kafka is not installed.
    """

    def __init__(self, uri: str, options: Mapping[str, object]) -> None:
        self.name = uri.removeprefix(TOPIC_SCHEME)
        if not uri.startswith(TOPIC_SCHEME) or not self.name or "/" in self.name:
            raise BadInput(f"source {uri!r} is not a topic; expected kafka://topic, with the brokers in a connection")
        config = {name: value for name, value in options.items() if not name.startswith(REGISTRY_PREFIX)}
        if not config.get("bootstrap.servers"):
            raise BadInput(
                f"source {uri!r}: the connection has no 'bootstrap.servers'; add it to the extra of the connection of "
                "type kafka"
            )
        self._config = {"group.id": "airflow-hops", **config, **_FORCED}
        self._servers = config["bootstrap.servers"]
        self.consumer: Any = None
        self._admin_client: object = None

    def __enter__(self) -> Self:
        with self.explaining():
            self.consumer = kafka_library().Consumer(self._config)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.consumer.close()

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Converts librdkafka's errors to errors that name the topic."""
        kafka = kafka_library()
        try:
            yield
        except (TypeError, ValueError) as error:
            raise BadInput(f"topic {self.name!r}: librdkafka refuses the connection's extra: {error}") from error
        except kafka.KafkaException as error:
            raise self.error_of(error.args[0]) from error

    def error_of(self, error: object) -> HopsError:
        """Returns the error for a ``KafkaError``; those that a retry cannot fix are :class:`BadInput`."""
        name = error.name() if hasattr(error, "name") else ""
        text = error.str() if hasattr(error, "str") else str(error)
        kind = BadInput if name in _FINAL_ERRORS else HopsError
        return kind(f"topic {self.name!r} at {self._servers}: {text} ({name})")

    def partitions(self) -> list[int]:
        """Returns the numbers of the partitions.

        Raises:
            BadInput: there is no such topic, or it may not be read.
            HopsError: no broker answers.
        """
        with self.explaining():
            metadata = self.consumer.list_topics(self.name, timeout=TIMEOUT_S).topics[self.name]
        if metadata.error is not None:
            raise self.error_of(metadata.error)
        return sorted(metadata.partitions)

    def bounds(self, partition: int) -> tuple[int, int]:
        """Returns the first offset that is still stored, and the next one to be written (or of an open transaction)."""
        with self.explaining():
            place = kafka_library().TopicPartition(self.name, partition)
            low, high = self.consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
        return low, high

    def offset_at(self, partition: int, time_ms: int) -> int | None:
        """Returns the offset of the first record with this time or a later one; None if there is no such record."""
        with self.explaining():
            place = kafka_library().TopicPartition(self.name, partition, time_ms)
            (answer,) = self.consumer.offsets_for_times([place], timeout=TIMEOUT_S)
            if answer.error is not None:
                raise self.error_of(answer.error)
        return None if answer.offset < 0 else int(answer.offset)

    def topic_id(self) -> str | None:
        """Returns the topic's id, or None if the brokers do not report it."""
        kafka = kafka_library()
        try:
            asked = self._admin().describe_topics(kafka.TopicCollection([self.name]), request_timeout=ADMIN_TIMEOUT_S)
            topic_id = str(asked[self.name].result().topic_id)
        except kafka.KafkaException:
            return None
        return None if topic_id.strip("A") == "" else topic_id  # all zeros: a broker before 2.8

    def cleanup_policy(self) -> str | None:
        """Returns the topic's ``cleanup.policy``, or None if it cannot be read."""
        from confluent_kafka.admin import ConfigResource

        resource = ConfigResource(ConfigResource.Type.TOPIC, self.name)
        try:
            asked = self._admin().describe_configs([resource], request_timeout=ADMIN_TIMEOUT_S)
            entry = asked[resource].result().get("cleanup.policy")
        except kafka_library().KafkaException:
            return None
        return None if entry is None else str(entry.value)

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        if self._admin_client is None:  # kept, so it is no garbage while it waits
            of_consumers = {*_FORCED, "group.id", "isolation.level"}
            config = {name: value for name, value in self._config.items() if name not in of_consumers}
            self._admin_client = AdminClient(config)
        return self._admin_client


def kafka_library() -> Any:
    """Imports confluent-kafka. Raises BadInput if it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise BadInput(
            "topics need confluent-kafka, which Airflow's Kafka provider brings; install airflow-hops[kafka] beside "
            f"Airflow, or recreate the runtime environment ({error})"
        ) from error
    return confluent_kafka
