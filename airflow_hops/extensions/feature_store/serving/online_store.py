"""Reads Feast's online stores, Redis and SQLite, in Feast's own layout (entity key serialization version 3).

Feast itself needs other libraries than the model server, and looks up one view at a time.
"""

from __future__ import annotations

import math
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from airflow_hops.core.serving_api import tensors
from airflow_hops.serving.errors import StartError

# Time limits: every look-up has a deadline, which its thread sets in _ends; all socket calls of the thread are cut to
# what remains of it. LookupLimit protects the server's threads from a hanging store: if all slots are taken, a request
# waits 50 ms if the store has answered within the last 50 ms, and fails at once otherwise.

_NO_ENTITY: Mapping[str, tuple[str, Any]] = {"__dummy_id": ("STRING", "")}
KEY_TENSORS = {"STRING": tensors.STRING, "INT32": tensors.BY_NAME["int64"], "INT64": tensors.BY_NAME["int64"]}
"""Feast's types of keys to the types of tensors that hold them in requests."""
_KEY_TYPES = {"STRING": 2, "INT32": 3, "INT64": 4}
_PATIENCE_S = 0.05
"""Time in which a working store answers another look-up, which frees its place."""
_NO_TIME = -(2**63)
"""Null of the type UnixTimestamp, as Feast stores it."""
_FIELDS = descriptor_pb2.FieldDescriptorProto


class OnlineStoreError(Exception):
    """The online store does not answer."""


class ViewLookup(NamedTuple):
    """A view's features of several entities.

    Attributes:
        view: The view.
        features: Names of the features.
        keys: Serialized keys of the entities (:func:`entity_key`).
    """

    view: str
    features: tuple[str, ...]
    keys: tuple[bytes, ...]


class EntityValues(NamedTuple):
    """The features of one entity: the time of the event in seconds since the epoch, and the existing values.

    A ``ValueError`` stands for a value that cannot be read.
    """

    event_s: float
    values: Mapping[str, Any]


class LookupLimit:
    """Limits concurrent look-ups, so that a hanging store leaves threads for other models.

    Args:
        count: Maximum number of look-ups.
    """

    def __init__(self, count: int = 4) -> None:
        self._count, self._slots = count, threading.Semaphore(count)
        self._answered_s = -math.inf

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Reserves one of the concurrent look-ups.

        Raises:
            OnlineStoreError: all places are taken, and the store has not answered lately.
        """
        answers = time.monotonic() - self._answered_s < _PATIENCE_S
        if not self._slots.acquire(timeout=_PATIENCE_S if answers else 0):
            raise OnlineStoreError(f"{self._count} look-ups are already waiting for its answer")
        try:
            yield
            self._answered_s = time.monotonic()
        finally:
            self._slots.release()


class _Ends(threading.local):
    """End of the thread's look-up, on the clock of ``time.monotonic()``."""

    at_s = math.inf

    def remaining_s(self) -> float:
        """Returns the remaining time; raises TimeoutError if none remains."""
        if (remaining_s := self.at_s - time.monotonic()) <= 0:
            raise TimeoutError("the look-up took too long")
        return remaining_s


_ends = _Ends()


class _BoundedSocket:
    """A socket whose calls end with the thread's look-up; redis limits each call, but an answer can take many."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._timeout_s = inner, inner.gettimeout()

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def recv(self, size: int) -> bytes:
        return self._bounded(self._inner.recv, size)  # type: ignore[no-any-return]

    def sendall(self, content: bytes) -> None:
        self._bounded(self._inner.sendall, content)

    def _bounded(self, call: Callable[[Any], Any], argument: Any) -> Any:
        timeout_s = math.inf if self._timeout_s is None else self._timeout_s
        self._inner.settimeout(min(timeout_s, _ends.remaining_s()))
        return call(argument)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _bounded_connection(url: str) -> type[Any]:
    """Returns redis's class of connections for a URL, with bounded sockets."""
    import redis

    base: Any = redis.SSLConnection if url.startswith("rediss://") else redis.Connection

    class Connection(base):
        def _connect(self) -> _BoundedSocket:
            self.socket_connect_timeout = _ends.remaining_s()
            return _BoundedSocket(super()._connect())

    return Connection


class RedisStore:
    """Redis, one hash for each entity; thread-safe.

    Args:
        url: ``redis://`` or ``rediss://`` URL.
        project: Feast's project.
        timeout_s: Time for an answer.
    """

    def __init__(self, url: str, project: str, timeout_s: float) -> None:
        import redis

        self._project, self._timeout_s = project.encode(), timeout_s
        _field("", "")  # imports scikit-learn, which takes longer than a look-up may
        self._failure: type[Exception] = redis.RedisError
        pool = redis.ConnectionPool.from_url(url, socket_timeout=timeout_s)
        pool.connection_class = _bounded_connection(url)
        self._client = redis.Redis(connection_pool=pool)

    def read(self, lookups: Sequence[ViewLookup]) -> list[list[EntityValues | None]]:
        """Reads all look-ups in one round trip.

        Returns:
            For each look-up and each of its keys the values; None for an unknown entity.

        Raises:
            OnlineStoreError: the store does not answer in time.
        """
        _ends.at_s = time.monotonic() + self._timeout_s
        with self._client.pipeline(transaction=False) as pipeline:
            for view, features, keys in lookups:
                fields = [f"_ts:{view}".encode(), *(_field(view, feature) for feature in features)]
                for key in keys:
                    pipeline.hmget(key + self._project, fields)
            try:
                answers = iter(pipeline.execute(raise_on_error=False))
            except (self._failure, OSError) as error:
                raise OnlineStoreError(str(error)) from error
        return [[self._values(features, next(answers)) for _ in keys] for _, features, keys in lookups]

    def _values(self, features: Sequence[str], answer: Any) -> EntityValues | None:
        if isinstance(answer, Exception):
            if not str(answer).startswith("WRONGTYPE"):
                raise OnlineStoreError(str(answer)) from answer
            return _damaged(features, str(answer))
        time, *values = answer
        if not time:
            return None
        try:
            time_of = Timestamp.FromString(time)
        except DecodeError as error:
            return _damaged(features, f"its time: {error}")
        stored = {name: _decode(value) for name, value in zip(features, values, strict=True) if value is not None}
        return EntityValues(time_of.seconds + time_of.nanos / 1e9, stored)


class SqliteStore:
    """An SQLite file, with a table for each view; thread-safe.

    Args:
        path: The file.
        project: Feast's project.
        timeout_s: Time for an answer, also while Feast writes.
    """

    def __init__(self, path: Path, project: str, timeout_s: float) -> None:
        self._path, self._project, self._timeout_s = path, project, timeout_s
        self._local = threading.local()

    def read(self, lookups: Sequence[ViewLookup]) -> list[list[EntityValues | None]]:
        """Reads the entities in turn in one transaction, so that only the first read waits for Feast's writes.

        Result and errors are those of :meth:`RedisStore.read`.
        """
        _ends.at_s = time.monotonic() + self._timeout_s
        try:
            if not hasattr(self._local, "connection"):
                self._local.connection = sqlite3.connect(
                    f"{self._path.as_uri()}?mode=ro", uri=True, timeout=self._timeout_s, isolation_level=None
                )
            with self._local.connection as connection:
                connection.execute("BEGIN")
                return [[self._read(connection, *lookup[:2], key) for key in lookup.keys] for lookup in lookups]
        except (sqlite3.Error, TimeoutError) as error:
            raise OnlineStoreError(f"{self._path}: {error}") from error

    def _read(
        self, connection: sqlite3.Connection, view: str, features: Sequence[str], key: bytes
    ) -> EntityValues | None:
        _ends.remaining_s()
        table = f"{self._project}_{view}".replace('"', '""')
        marks = ", ".join("?" * len(features))
        rows = connection.execute(
            f'SELECT feature_name, value, event_ts FROM "{table}" WHERE entity_key = ? AND feature_name IN ({marks})',
            (key, *features),
        ).fetchall()
        if not rows:
            return None
        try:
            event_s = max(float(time) for _, _, time in rows)
        except (TypeError, ValueError) as error:
            return _damaged(features, f"its time: {error}")
        return EntityValues(event_s, {name: _decode(value) for name, value, _ in rows})


OnlineStore = RedisStore | SqliteStore
"""An online store of one project."""


def _damaged(features: Sequence[str], why: str) -> EntityValues:
    return EntityValues(math.inf, dict.fromkeys(features, ValueError(why)))


def open_online_store(place: str, project: str, timeout_s: float) -> OnlineStore:
    """Opens an online store.

    Args:
        place: URL (``redis://``, ``rediss://``, ``sqlite:///absolute/path``), or path of a file that holds one.
        project: Feast's project.
        timeout_s: Time for an answer.

    Raises:
        StartError: the place is none of these.
    """
    url = place
    if "://" not in place:
        try:
            url = Path(place).read_text().strip()
        except OSError as error:
            raise StartError(f"--online_store={place}: {error.strerror}; expected a URL, or a file with one") from error
    if url.startswith("sqlite:///"):
        return SqliteStore(Path(url.removeprefix("sqlite://")), project, timeout_s)
    if url.startswith(("redis://", "rediss://")):
        return RedisStore(url, project, timeout_s)
    raise StartError(
        "--online_store: expected redis://, rediss:// or sqlite:///absolute/path, or a file with such a URL"
    )


def entity_key(values: Mapping[str, tuple[str, Any]]) -> bytes:
    """Serializes an entity's key as Feast does.

    Args:
        values: Feast's type (``STRING``, ``INT32`` or ``INT64``) and the value, by join key; empty for a view without
            entities.

    Raises:
        struct.error: an integer is beyond its type.
    """
    values = values or _NO_ENTITY
    parts = [struct.pack("<I", len(values))]
    for name in sorted(values):
        encoded = name.encode()
        parts += [struct.pack("<II", _KEY_TYPES["STRING"], len(encoded)), encoded]
    for name in sorted(values):
        kind, value = values[name]
        if kind == "STRING":
            content = value if isinstance(value, bytes) else str(value).encode()
        else:
            content = struct.pack("<q" if kind == "INT64" else "<i", int(value))
        parts += [struct.pack("<II", _KEY_TYPES[kind], len(content)), content]
    return b"".join(parts)


@cache
def _field(view: str, feature: str) -> bytes:
    """Returns the field of a feature in an entity's hash."""
    from sklearn.utils import murmurhash3_32

    return struct.pack("<I", murmurhash3_32(f"{view}:{feature}", seed=0, positive=True))


def _value_class() -> Any:
    """Returns Feast's message ``Value``, with the types that models can take."""
    scalars = {
        "bytes_val": (1, _FIELDS.TYPE_BYTES),
        "string_val": (2, _FIELDS.TYPE_STRING),
        "int32_val": (3, _FIELDS.TYPE_INT32),
        "int64_val": (4, _FIELDS.TYPE_INT64),
        "double_val": (5, _FIELDS.TYPE_DOUBLE),
        "float_val": (6, _FIELDS.TYPE_FLOAT),
        "bool_val": (7, _FIELDS.TYPE_BOOL),
        "unix_timestamp_val": (8, _FIELDS.TYPE_INT64),
        "null_val": (19, _FIELDS.TYPE_INT32),
    }
    lists = {"double_list_val": (15, _FIELDS.TYPE_DOUBLE), "float_list_val": (16, _FIELDS.TYPE_FLOAT)}
    file = descriptor_pb2.FileDescriptorProto(name="feast_value.proto", package="hops.feast", syntax="proto3")
    value = file.message_type.add(name="Value")
    value.oneof_decl.add(name="val")
    for name, (number, kind) in scalars.items():
        value.field.add(name=name, number=number, type=kind, label=_FIELDS.LABEL_OPTIONAL, oneof_index=0)
    for name, (number, kind) in lists.items():
        inner = file.message_type.add(name=f"List{number}")
        inner.field.add(name="val", number=1, type=kind, label=_FIELDS.LABEL_REPEATED)
        value.field.add(
            name=name,
            number=number,
            type=_FIELDS.TYPE_MESSAGE,
            type_name=f".hops.feast.List{number}",
            label=_FIELDS.LABEL_OPTIONAL,
            oneof_index=0,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("hops.feast.Value"))


_Value = _value_class()


def _decode(content: bytes) -> Any:
    """Returns a stored value; None if it is null."""
    try:
        value = _Value.FromString(content)
    except (DecodeError, TypeError) as error:
        return ValueError(str(error))
    kind = value.WhichOneof("val")
    if kind is None or kind == "null_val":
        return None if kind or not content else ValueError("a value of a type that no model takes")
    stored = getattr(value, kind)
    if kind == "unix_timestamp_val" and stored == _NO_TIME:
        return None
    return list(stored.val) if kind.endswith("_list_val") else stored
