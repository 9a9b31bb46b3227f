"""What the request path leaves in the spool: one record an answered request, undecoded, or one a label."""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count

from airflow_hops.serving_api.protocol import Method

Label = bool | int | float | str

_CALL_KIND, _LABEL_KIND = 1, 2
# kind, method, api, shadow; arrival in µs, latency in ms, version, rows; bytes of request id, model and request.
_CALL = struct.Struct("<BBBBqdqIHHI")
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


def unpack(record: bytes) -> CapturedCall | CapturedLabel:
    """Reads a record.

    Raises:
        ValueError: It is none.
    """
    if record[:1] == bytes((_LABEL_KIND,)):
        return CapturedLabel(**json.loads(record[1:]))
    if record[:1] != bytes((_CALL_KIND,)):
        raise ValueError(f"a record of {len(record)} bytes is of kind {record[:1]!r}")
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


def peek(record: bytes) -> tuple[tuple[object, ...], int]:
    """Returns what a record's rows are counted under, and how many they are, without reading all of it."""
    if record[0] != _CALL_KIND:
        return ("label",), 1
    head = _CALL.unpack_from(record)
    model_at = _CALL.size + head[8]
    return (record[model_at : model_at + head[9]], head[6], head[3]), head[7]
