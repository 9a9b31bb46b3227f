"""Sends captured rows to Kafka: each row is a message, a JSON object with the columns of the captured files.

A batch is one transaction, so that attempts that failed leave nothing that a reader of committed records sees. If the
writer is killed between the commit and the note of it in the spool, the batch is sent again; its rows have the same
``request_id`` and ``row``.
"""

from __future__ import annotations

import base64
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from airflow_hops.serving.capture.batch import Part

log = logging.getLogger(__name__)

LABELS_SUFFIX, SHADOW_SUFFIX = "-labels", "-shadow"
"""Ends of the names of the topics of labels and of shadow answers."""
_ANSWER_S = 10.0


class CapturedTopic:
    """The topics of captured rows.

    Args:
        topic: Name of the topic of answered requests.
        config_file: JSON file with librdkafka's configuration.
        sender: Name of the sender of transactions, of which the newest one alone can commit.

    Raises:
        OSError: the file cannot be read, or librdkafka refuses its content.
    """

    def __init__(self, topic: str, config_file: str, sender: str) -> None:
        self._topic = topic
        self._config = {
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
            **read_config(config_file),
            "transactional.id": sender,
        }
        self._producer: Any = None

    def send(self, parts: Sequence[Part]) -> Counter[str]:
        """Sends the rows of parts in one transaction; returns by model how many rows cannot be sent at all.

        Raises:
            OSError: the brokers have not committed them.
        """
        from confluent_kafka import KafkaError, KafkaException, Producer

        unsendable: Counter[str] = Counter()
        try:
            if self._producer is None:
                producer = Producer(self._config)
                producer.init_transactions(_ANSWER_S)
                self._producer = producer
            self._producer.begin_transaction()
            for part in parts:
                try:
                    table = part.table() if part.table else None
                except Exception as error:
                    log.error("capture: %d rows of model %s cannot be sent: %s", part.rows, part.model, error)
                    unsendable[part.model] += part.rows
                    continue
                for key, value in _messages(table, {"model": part.model} if part.labels else {}):
                    if not self._produce(self._name(part), key, value, KafkaError, KafkaException):
                        unsendable[part.model] += 0 if part.labels else 1
            self._producer.commit_transaction(_ANSWER_S)
        except (KafkaException, BufferError) as error:
            if self._producer is not None:
                self._producer.purge()
            self._producer = None  # another one ends this transaction
            raise OSError(f"topic {self._topic}: {error.args[0]}") from error
        return unsendable

    def _produce(self, topic: str, key: bytes, value: bytes, kinds: Any, failure: Any) -> bool:
        while True:
            try:
                self._producer.produce(topic, value, key)
            except BufferError:  # librdkafka's queue is full
                if self._producer.flush(_ANSWER_S):
                    raise
                continue
            except failure as error:
                if error.args[0].code() != kinds.MSG_SIZE_TOO_LARGE:
                    raise
                log.error("capture: a row of %d bytes is larger than a message of topic %s", len(value), topic)
                return False
            self._producer.poll(0)
            return True

    def _name(self, part: Part) -> str:
        if part.labels:
            return self._topic + LABELS_SUFFIX
        return self._topic + (SHADOW_SUFFIX if part.shadow else "")


def read_config(config_file: str) -> dict[str, Any]:
    """Returns librdkafka's configuration in a JSON file. Raises OSError if it has none with ``bootstrap.servers``."""
    try:
        config = json.loads(Path(config_file).read_text())
    except ValueError as error:
        raise OSError(f"{config_file} is not JSON: {error}") from error
    if not isinstance(config, dict) or not config.get("bootstrap.servers"):
        raise OSError(f"{config_file}: expected a JSON object of librdkafka's options, with 'bootstrap.servers'")
    return config


def _messages(table: Any, more: Mapping[str, Any]) -> Iterator[tuple[bytes, bytes]]:
    """Yields key and value of each row; the key is the request's id, so that a request's rows stay in order."""
    columns = [] if table is None else [column.to_pylist() for column in table.columns]
    for values in zip(*columns, strict=True):
        row = dict(zip(table.column_names, values, strict=True))
        yield row["request_id"].encode(), orjson.dumps({**row, **more}, default=_text_of)


def _text_of(value: Any) -> str:
    """Returns bytes as text in Base64."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError
