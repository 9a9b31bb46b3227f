"""What the request path leaves in the spool: one record an answered request, undecoded, or one a label."""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import numpy as np

from airflow_hops.serving_api.protocol import Method

Label = bool | int | float | str

_CALL_KIND, _LABEL_KIND = 1, 2
# kind, method, api, shadow; arrival in µs, latency in ms, version, rows; bytes of request id, model and request.
_CALL = struct.Struct("<BBBBqdqIHHI")
_AT_US, _LATENCY_MS = 4, 12
_METHODS = tuple(Method)
_METHOD_NUMBERS = {method: number for number, method in enumerate(_METHODS)}
_APIS = ("grpc", "rest")
_LONGEST_NAME_BYTES = 65_535
_MOST_ROWS = 2**32 - 1


def request_ids() -> Callable[[], str]:
    """Returns a source of request ids that no other server makes: a tenth of a UUID's cost."""
    prefix, numbers = secrets.token_hex(8), count(1)
    return lambda: f"{prefix}-{next(numbers):x}"


@dataclass(slots=True)
class CapturedCall:
    """One answered request, as the request path leaves it.

    Attributes:
        request_id: The client's id of the request, or one made for it.
        model: Model name.
        version: The version that answered.
        method: The gRPC method.
        api: "grpc" or "rest".
        at_us: Arrival, microseconds since 1970 UTC.
        latency_ms: Milliseconds in the server.
        rows: Rows of the request.
        request: The request, serialized; empty where inputs are not captured.
        response: The response, serialized; empty where predictions are not captured.
        shadow: Whether the answer was compared, and not returned.
    """

    request_id: str
    model: str
    version: int
    method: Method
    api: str
    at_us: int
    latency_ms: float
    rows: int
    request: bytes
    response: bytes
    shadow: bool = False


@dataclass(frozen=True, slots=True)
class CapturedLabel:
    """What was right about one row of a request, as it became known later.

    Attributes:
        model: Model name.
        request_id: The request's id.
        row: Row within the request.
        values: Label by name.
        at_us: When it became known, microseconds since 1970 UTC.
        received_us: When the server was told.
    """

    model: str
    request_id: str
    row: int
    values: dict[str, Label]
    at_us: int
    received_us: int


def pack_call(call: CapturedCall) -> bytes:
    """Returns the record of a request."""
    request_id = call.request_id.encode("utf-8", "replace")[:_LONGEST_NAME_BYTES]
    model = call.model.encode()
    head = _CALL.pack(
        _CALL_KIND,
        _METHOD_NUMBERS[call.method],
        call.api == "rest",
        call.shadow,
        call.at_us,
        call.latency_ms,
        call.version,
        min(call.rows, _MOST_ROWS),
        len(request_id),
        len(model),
        len(call.request),
    )
    return b"".join((head, request_id, model, call.request, call.response))


def pack_label(label: CapturedLabel) -> bytes:
    """Returns the record of a label."""
    return bytes((_LABEL_KIND,)) + json.dumps(asdict(label)).encode()


def unpack_label(record: bytes) -> CapturedLabel:
    """Reads the record of a label."""
    return CapturedLabel(**json.loads(record[1:]))


def unpack(record: bytes) -> CapturedCall:
    """Reads the record of a request."""
    _, method, api, shadow, at_us, latency_ms, version, rows, id_bytes, model_bytes, request_bytes = _CALL.unpack_from(
        record
    )
    model_at = _CALL.size + id_bytes
    request_at = model_at + model_bytes
    response_at = request_at + request_bytes
    return CapturedCall(
        request_id=record[_CALL.size : model_at].decode(errors="replace"),
        model=record[model_at:request_at].decode(),
        version=version,
        method=_METHODS[method],
        api=_APIS[api],
        at_us=at_us,
        latency_ms=latency_ms,
        rows=rows,
        request=record[request_at:response_at],
        response=record[response_at:],
        shadow=bool(shadow),
    )


def is_label(record: bytes) -> bool:
    """Returns whether a record is a label's."""
    return record[0] == _LABEL_KIND


def likeness(record: bytes) -> tuple[object, ...]:
    """Returns what records of requests have in common whose parts lie at the same places.

    Model, version, method, API, rows, and whether it is a shadow's; the sizes of all parts.
    """
    _, method, api, shadow, _, _, version, rows, id_bytes, model_bytes, request_bytes = _CALL.unpack_from(record)
    model_at = _CALL.size + id_bytes
    model = record[model_at : model_at + model_bytes]
    return model, version, method, api, shadow, rows, id_bytes, request_bytes, len(record)


@dataclass(frozen=True)
class AlikeCalls:
    """Requests of one likeness, undecoded.

    Attributes:
        matrix: Their records, ``[requests, bytes]``, uint8.
    """

    matrix: np.ndarray

    @classmethod
    def of(cls, records: Sequence[bytes]) -> AlikeCalls:
        """Reads records of one likeness."""
        return cls(np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1))

    def sample(self, index: int) -> CapturedCall:
        """Returns one of them."""
        return unpack(self.matrix[index].tobytes())

    def take(self, indexes: np.ndarray) -> AlikeCalls:
        """Returns some of them, in order."""
        return self if len(indexes) == len(self.matrix) else AlikeCalls(self.matrix[indexes])

    @property
    def messages(self) -> tuple[np.ndarray, np.ndarray]:
        """Requests and responses, each ``[requests, bytes]``."""
        *_, id_bytes, model_bytes, request_bytes = self._head
        request_at = _CALL.size + id_bytes + model_bytes
        response_at = request_at + request_bytes
        return self.matrix[:, request_at:response_at], self.matrix[:, response_at:]

    @property
    def request_ids(self) -> list[str]:
        """Their ids."""
        width = self._head[-3]
        if not width:
            return [""] * len(self.matrix)
        ids = np.ascontiguousarray(self.matrix[:, _CALL.size : _CALL.size + width]).reshape(-1).view(f"V{width}")
        return [each.decode(errors="replace") for each in ids.tolist()]

    @property
    def at_us(self) -> list[int]:
        """Their arrivals."""
        return self._numbers(_AT_US, "<i8")

    @property
    def latency_ms(self) -> list[float]:
        """Their latencies."""
        return self._numbers(_LATENCY_MS, "<f8")

    @property
    def _head(self) -> tuple[Any, ...]:
        return _CALL.unpack(self.matrix[0, : _CALL.size].tobytes())

    def _numbers(self, at: int, dtype: str) -> list[Any]:
        numbers: list[Any] = np.ascontiguousarray(self.matrix[:, at : at + 8]).reshape(-1).view(dtype).tolist()
        return numbers


def peek(record: bytes) -> tuple[tuple[object, ...], int]:
    """Returns what a record's rows are counted under, and how many they are, without reading all of it."""
    if record[0] != _CALL_KIND:
        return ("label",), 1
    head = _CALL.unpack_from(record)
    model_at = _CALL.size + head[8]
    return (record[model_at : model_at + head[9]], head[6], head[3]), head[7]
