"""Client of Feast's gRPC feature server (``feast listen``), which reads whatever online store the repository has.

Feast itself needs other libraries than the model server.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
import numpy as np

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import load_messages
from airflow_hops.core.serving_api.tls_files import open_channel
from airflow_hops.extensions.feature_store.core.stored_features import StoredFeature

# LookupLimit protects the server's threads from a hanging feature server: if all slots are taken, a request waits 50 ms
# if the feature server has answered within the last 50 ms, and fails at once otherwise.

KEY_TENSORS = {"STRING": tensors.STRING, "INT32": tensors.BY_NAME["int64"], "INT64": tensors.BY_NAME["int64"]}
"""Feast's types of keys to the types of tensors that hold them in requests."""
_NO_ENTITY = "__dummy_id"
"""Feast's key of views without entities."""
_PATIENCE_S = 0.05
"""Time in which a working feature server answers another look-up, which frees its place."""
_NO_TIME = -(2**63)
"""Null of the type UnixTimestamp, as Feast stores it."""
_MESSAGES = load_messages(__package__)
_NO_VECTOR = _MESSAGES["FeatureVector"]()
_Entity = tuple[tuple[str, str, str], ...]
"""Join key, Feast's type and name in the request of each key of an entity."""


class FeatureServerError(Exception):
    """The feature server does not answer."""


class StoredValue(NamedTuple):
    """A feature of an entity.

    Attributes:
        value: The value; None if there is none, or a ``ValueError`` if it is of a type that no model takes.
        event_s: Time of the event in seconds since the epoch.
    """

    value: Any
    event_s: float


class LookupLimit:
    """Limits concurrent look-ups, so that a hanging feature server leaves threads for other models.

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
            FeatureServerError: all places are taken, and the feature server has not answered lately.
        """
        answers = time.monotonic() - self._answered_s < _PATIENCE_S
        if not self._slots.acquire(timeout=_PATIENCE_S if answers else 0):
            raise FeatureServerError(f"{self._count} look-ups are already waiting for its answer")
        try:
            yield
            self._answered_s = time.monotonic()
        finally:
            self._slots.release()


class FeatureServer:
    """A feature server; thread-safe.

    Args:
        address: ``host:port``.
        timeout_s: Time for an answer.
    """

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address, self._timeout_s = address, timeout_s
        self._channel = open_channel(address)
        self._method = self._channel.unary_unary(
            "/GrpcFeatureServer/GetOnlineFeatures",
            _MESSAGES["GetOnlineFeaturesRequest"].SerializeToString,
            _MESSAGES["GetOnlineFeaturesResponse"].FromString,
        )

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def read(
        self, features: Sequence[StoredFeature], keys: Mapping[str, np.ndarray], rows: int
    ) -> list[list[StoredValue]]:
        """Looks features up: those with the same keys in one call, and all calls at once.

        Args:
            features: The features, whose ``keys`` are names in ``keys``.
            keys: Keys of the entities, ``[rows]`` each.
            rows: Number of rows.

        Returns:
            The values of each feature: one for each row, or fewer if the feature server gives no times of them.

        Raises:
            FeatureServerError: the feature server does not answer in time, or answers with an error.
            ValueError: a key cannot be of its type.
        """
        groups: dict[_Entity, list[int]] = {}
        for number, feature in enumerate(features):
            entity = tuple(sorted((key, kind, feature.keys[key]) for key, kind in feature.key_types.items()))
            groups.setdefault(entity, []).append(number)
        requests = [
            _request([features[each] for each in group], entity, keys, rows) for entity, group in groups.items()
        ]
        calls = [self._method.future(request, timeout=self._timeout_s) for request in requests]
        result: list[list[StoredValue]] = [[] for _ in features]
        for call, group in zip(calls, groups.values(), strict=True):
            try:
                answer = call.result()
            except grpc.RpcError as error:
                raise FeatureServerError(f"{self._address}: {error.code().name}: {error.details()}") from error
            vectors = dict(zip(answer.metadata.feature_names.val, answer.results, strict=False))
            for number in group:
                vector = vectors.get(f"{features[number].view}__{features[number].feature}", _NO_VECTOR)
                times = (time.seconds + time.nanos / 1e9 for time in vector.event_timestamps)
                result[number] = list(map(StoredValue, map(_decode, vector.values), times))
        return result


def _request(features: Sequence[StoredFeature], entity: _Entity, keys: Mapping[str, np.ndarray], rows: int) -> Any:
    """Returns the request for features with the same keys."""
    request = _MESSAGES["GetOnlineFeaturesRequest"](full_feature_names=True)
    request.features.val.extend(dict.fromkeys(f"{each.view}:{each.feature}" for each in features))
    for key, kind, column in entity:
        add = request.entities[key].val.add
        for value in keys[column].tolist():
            if kind == "STRING":
                add(string_val=value.decode())
            else:
                add(**{f"{kind.lower()}_val": int(value)})
    if not entity:
        request.entities[_NO_ENTITY].val.extend([_MESSAGES["Value"](string_val="")] * rows)
    return request


def _decode(value: Any) -> Any:
    """Returns a stored value; None if it is null."""
    kind = value.WhichOneof("val")
    if kind is None:
        return ValueError("a value of a type that no model takes") if value.ByteSize() else None
    stored = getattr(value, kind)
    if kind == "null_val" or (kind == "unix_timestamp_val" and stored == _NO_TIME):
        return None
    return list(stored.val) if kind.endswith("_list_val") else stored
