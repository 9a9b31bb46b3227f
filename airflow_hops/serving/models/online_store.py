"""Reads Feast's online stores, Redis and SQLite, in Feast's own layout (entity key serialization version 3).

Feast itself needs other libraries than the model server, and looks up one view at a time.
"""

from __future__ import annotations

import sqlite3
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.timestamp_pb2 import Timestamp

from airflow_hops.serving.errors import StartError

_NO_ENTITY: Mapping[str, tuple[str, Any]] = {"__dummy_id": ("STRING", "")}
_KEY_TYPES = {"STRING": 2, "INT32": 3, "INT64": 4}
_FIELDS = descriptor_pb2.FieldDescriptorProto


class OnlineStoreError(Exception):
    """The online store does not answer."""


class Lookup(NamedTuple):
    """A view's features of several entities.

    Attributes:
        view: The view.
        features: Names of the features.
        keys: Serialized keys of the entities (:func:`entity_key`).
    """

    view: str
    features: tuple[str, ...]
    keys: tuple[bytes, ...]


class Values(NamedTuple):
    """The features of one entity: the time of the event in seconds since the epoch, and the values that there are."""

    event_s: float
    values: Mapping[str, Any]


class OnlineStore(ABC):
    """An online store of one project; thread-safe."""

    @abstractmethod
    def read(self, lookups: Sequence[Lookup]) -> list[list[Values | None]]:
        """Returns, for each look-up and each of its keys, the values; None for an unknown entity.

        Raises:
            OnlineStoreError: the store does not answer in time.
        """


class RedisStore(OnlineStore):
    """Redis, one hash for each entity.

    Args:
        url: ``redis://`` or ``rediss://`` URL.
        project: Feast's project.
        timeout_s: Time for an answer.
    """

    def __init__(self, url: str, project: str, timeout_s: float) -> None:
        import redis

        self._project = project.encode()
        self._failure: type[Exception] = redis.RedisError
        self._client = redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)

    def read(self, lookups: Sequence[Lookup]) -> list[list[Values | None]]:
        """Reads all look-ups in one round trip."""
        with self._client.pipeline(transaction=False) as pipeline:
            for view, features, keys in lookups:
                fields = [f"_ts:{view}".encode(), *(_field(view, feature) for feature in features)]
                for key in keys:
                    pipeline.hmget(key + self._project, fields)
            try:
                answers = iter(pipeline.execute())
            except (self._failure, OSError) as error:
                raise OnlineStoreError(str(error)) from error
        results = []
        for _, features, keys in lookups:
            rows: list[Values | None] = []
            for _ in keys:
                time, *values = next(answers)
                stored = {name: value for name, value in zip(features, values, strict=True) if value is not None}
                at = Timestamp.FromString(time) if time else None
                event_s = at.seconds + at.nanos / 1e9 if at is not None else 0.0
                rows.append(Values(event_s, {name: _decode(value) for name, value in stored.items()}) if time else None)
            results.append(rows)
        return results


class SqliteStore(OnlineStore):
    """An SQLite file, with a table for each view.

    Args:
        path: The file.
        project: Feast's project.
        timeout_s: Time for which it waits while Feast writes.
    """

    def __init__(self, path: Path, project: str, timeout_s: float) -> None:
        self._path, self._project, self._timeout_s = path, project, timeout_s
        self._local = threading.local()

    def read(self, lookups: Sequence[Lookup]) -> list[list[Values | None]]:
        """Reads one entity after the other."""
        try:
            return [[self._read(view, features, key) for key in keys] for view, features, keys in lookups]
        except sqlite3.Error as error:
            raise OnlineStoreError(f"{self._path}: {error}") from error

    def _read(self, view: str, features: Sequence[str], key: bytes) -> Values | None:
        if not hasattr(self._local, "connection"):
            self._local.connection = sqlite3.connect(
                f"{self._path.as_uri()}?mode=ro", uri=True, timeout=self._timeout_s
            )
        table = f"{self._project}_{view}".replace('"', '""')
        marks = ", ".join("?" * len(features))
        rows = self._local.connection.execute(
            f'SELECT feature_name, value, event_ts FROM "{table}" WHERE entity_key = ? AND feature_name IN ({marks})',
            (key, *features),
        ).fetchall()
        if not rows:
            return None
        return Values(max(float(at) for _, _, at in rows), {name: _decode(value) for name, value, _ in rows})


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
    """Returns Feast's message ``Value``, as far as models can take its types."""
    scalars = {
        "bytes_val": (1, _FIELDS.TYPE_BYTES),
        "string_val": (2, _FIELDS.TYPE_STRING),
        "int32_val": (3, _FIELDS.TYPE_INT32),
        "int64_val": (4, _FIELDS.TYPE_INT64),
        "double_val": (5, _FIELDS.TYPE_DOUBLE),
        "float_val": (6, _FIELDS.TYPE_FLOAT),
        "bool_val": (7, _FIELDS.TYPE_BOOL),
        "unix_timestamp_val": (8, _FIELDS.TYPE_INT64),
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
    value = _Value.FromString(content)
    kind = value.WhichOneof("val")
    if kind is None:
        return None
    stored = getattr(value, kind)
    return list(stored.val) if kind.endswith("_list_val") else stored
