"""Sends captured rows to Kafka: each row is a message, a JSON object with the columns of the captured files.

The header ``hops-types`` has the Arrow types of the object's members, in their order, separated by ``;``: numbers have
as many digits as their type needs, and NaN and infinities, which JSON lacks, are the texts ``NaN``, ``Infinity`` and
``-Infinity``.

A batch is one transaction, so readers of committed records do not see failed attempts. If the
writer is killed between the commit and the note of it in the spool, the batch is sent again; its rows have the same
``request_id`` and ``row``.
"""

from __future__ import annotations

import base64
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import orjson

from airflow_hops.extensions.streams.core.topic_ranges import TYPES_HEADER
from airflow_hops.serving.capture.batch import BatchFile
from airflow_hops.serving.capture.sinks import CaptureSink

# A batch in Kafka: init_transactions (once per producer; fences older producers of the same name), begin, produce,
# flush, commit. Only then does the writer save its position. If the writer is killed before the commit, the next
# producer's fencing aborts the transaction; after the commit but before the save, the batch is sent twice.

log = logging.getLogger(__name__)

LABELS_SUFFIX = "-labels"
"""End of the name of the topic of labels."""
_ANSWER_S = 10.0
_ROWS_AT_ONCE = 1000
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class CapturedTopic(CaptureSink):
    """The topics of captured rows, the sink ``kafka://TOPIC?config=FILE``.

    Args:
        url: Topic of answered requests, and JSON file with librdkafka's configuration.
        sender: Name of the sender of transactions; of several senders with the name, only the newest can commit.

    Raises:
        ValueError: the URL is of another form.
        OSError: the file cannot be read, or has no ``bootstrap.servers``.
    """

    def __init__(self, url: str, sender: str) -> None:
        super().__init__(url, sender)
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        if not parts.netloc or parts.path or query.keys() != {"config"}:
            raise ValueError(f"{url!r}: expected kafka://TOPIC?config=FILE")
        self._topic = parts.netloc
        self._config = {
            "linger.ms": 50,
            "compression.type": "lz4",
            "delivery.report.only.error": True,  # the commit reports the others
            "queue.buffering.max.kbytes": 2**15,
            **read_config(query["config"][-1]),
            "transactional.id": sender,
        }
        self._producer: Any = None

    def send(self, parts: Sequence[BatchFile]) -> Counter[str]:
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
                    table = part.table()
                except Exception as error:
                    log.error("capture: %d rows of model %s cannot be sent: %s", part.rows, part.model, error)
                    unsendable[part.model] += part.rows
                    continue
                if part.labels:
                    table = table.append_column("model", [[part.model] * len(table)])
                topic = self._topic + LABELS_SUFFIX * bool(part.labels)
                headers = [(TYPES_HEADER, ";".join(str(type_) for type_ in table.schema.types))]
                for key, value in _messages(table):
                    if not self._produce(topic, key, value, headers, KafkaError, KafkaException):
                        unsendable[part.model] += 0 if part.labels else 1
            self._drain()
            self._producer.commit_transaction(_ANSWER_S)
        except (KafkaException, BufferError) as error:
            if self._producer is not None:
                self._producer.purge()
            self._producer = None  # another one ends this transaction
            raise OSError(f"topic {self._topic}: {error.args[0]}") from error
        return unsendable

    def _produce(self, topic: str, key: bytes, value: bytes, headers: Any, kinds: Any, failure: Any) -> bool:
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers)
                return True
            except BufferError:  # librdkafka's queue is full
                if len(self._producer):
                    self._drain()
                    continue
            except failure as error:
                if error.args[0].code() != kinds.MSG_SIZE_TOO_LARGE:
                    raise
            log.error("capture: a row of %d bytes is larger than a message of topic %s", len(value), topic)
            return False

    def _drain(self) -> None:
        """Waits until the brokers have acknowledged all messages; they may be slow, but not silent."""
        waiting = len(self._producer)
        while left := self._producer.flush(_ANSWER_S):
            if left >= waiting:
                raise BufferError(f"the brokers have acknowledged nothing for {_ANSWER_S:.0f} s")
            waiting = left


def read_config(config_file: str) -> dict[str, object]:
    """Returns librdkafka's configuration in a JSON file. Raises OSError if it has none with ``bootstrap.servers``."""
    try:
        config = json.loads(Path(config_file).read_text())
    except ValueError as error:
        raise OSError(f"{config_file} is not JSON: {error}") from error
    if not isinstance(config, dict) or not config.get("bootstrap.servers"):
        raise OSError(f"{config_file}: expected a JSON object of librdkafka's options, with 'bootstrap.servers'")
    return config


def _messages(table: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yields key and value of each row; the key is the request's id, so that a request's rows stay in order."""
    names = [orjson.dumps(name).replace(b"%", b"%%") + b":%b" for name in table.column_names]
    row = b"{" + b",".join(names) + b"}"
    for batch in table.to_batches(_ROWS_AT_ONCE):
        texts = zip(*(_texts(_values(column)) for column in batch.columns), strict=True)
        for request_id, values in zip(
            batch.column(table.column_names.index("request_id")).to_pylist(), texts, strict=True
        ):
            yield request_id.encode(), row % values


def _texts(values: Sequence[Any] | np.ndarray) -> list[bytes]:
    """Returns the JSON text of each value; numbers and times, which have no commas, are encoded together and split."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NAIVE_UTC
    if isinstance(values, np.ndarray):
        every: bytes = orjson.dumps(values, option=options)[1:-1]
        return every.split(b",")
    return [orjson.dumps(value, default=_text_of, option=options) for value in values]


def _values(column: Any) -> Sequence[Any] | np.ndarray:
    """Returns the values of a column without nulls, as orjson writes them; numbers and times are NumPy's."""
    import pyarrow as pa

    if pa.types.is_list(column.type):
        values, offsets = _values(column.flatten()), column.offsets.to_pylist()
        return [values[start - offsets[0] : end - offsets[0]] for start, end in pairwise(offsets)]
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    array: np.ndarray = column.to_numpy(zero_copy_only=False)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return [value if np.isfinite(value) else _NOT_FINITE[str(value)] for value in array]
    return array


def _text_of(value: object) -> str:
    """Returns bytes as text in Base64."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError
