"""Records of the spool: one for each answered request, undecoded, or one for each label."""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.serving.capture.options import CaptureMode
from airflow_hops.serving.request_kind import RequestKind

Label = bool | int | float | str

_CALL_KIND, _LABEL_KIND = 1, 2
# kind, method, api, shadow; arrival in µs, latency in ms, version, rows; bytes of request id, model and request.
_CALL = struct.Struct("<BBBBqdqIHHI")
_AT_US, _LATENCY_MS, _VERSION = 4, 12, 20
_NAME_BYTES, _NAME_BYTES_AT = struct.Struct("<HH"), 32
_METHODS = tuple(method.label for method in Method)
_BY_LABEL = {method.label: method for method in Method}
_APIS = ("GRPC", "REST")
_LONGEST_NAME_BYTES = 65_535
_MOST_ROWS = 2**32 - 1


def request_ids() -> Callable[[], str]:
    """Returns a source of request ids that no other server makes: a tenth of a UUID's cost."""
    prefix, numbers = secrets.token_hex(8), count(1)
    return lambda: f"{prefix}-{next(numbers):x}"


class CapturedCall(NamedTuple):
    """One answered request.

    Attributes:
        kind: What was asked, and the version that answered.
        request_id: The client's id of the request, or one made for it.
        at_us: Arrival, microseconds since 1970 UTC.
        latency_ms: Milliseconds in the server.
        rows: Rows of the request.
        request: The request, serialized; empty if inputs are not captured.
        response: The response, serialized; empty if predictions are not captured.
        shadow: Whether the answer was compared, and not returned.
    """

    kind: RequestKind
    request_id: str
    at_us: int
    latency_ms: float
    rows: int
    request: bytes
    response: bytes
    shadow: bool = False

    @property
    def model(self) -> str:
        """Model name."""
        return self.kind.model

    @property
    def version(self) -> int:
        """The version that answered."""
        return self.kind.version

    @property
    def method(self) -> Method:
        """The gRPC method."""
        return _BY_LABEL[self.kind.method]

    @property
    def api(self) -> str:
        """``grpc`` or ``rest``."""
        return self.kind.api.lower()


@dataclass(frozen=True, slots=True)
class CapturedLabel:
    """The label of one row of a request, as it became known later.

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


class CallPacker:
    """Makes the records of one kind of requests.

    Args:
        kind: What was asked.
        shadow: Whether the answers were compared, and not returned.
        mode: What of them is captured.
    """

    def __init__(self, kind: RequestKind, shadow: bool = False, mode: CaptureMode = "all") -> None:
        self._what = (_CALL_KIND, _METHODS.index(kind.method), _APIS.index(kind.api), shadow)
        self._version, self._model = kind.version, kind.model.encode()
        self._with_request, self._with_response = mode != "predictions", mode != "inputs"

    def pack(self, call: CapturedCall) -> bytes:
        """Returns the record of a request."""
        _, request_id, at_us, latency_ms, rows, request, response, _ = call
        if not self._with_request:
            request = b""
        if not self._with_response:
            response = b""
        name, model = request_id.encode("utf-8", "replace")[:_LONGEST_NAME_BYTES], self._model
        sizes = min(rows, _MOST_ROWS), len(name), len(model), len(request)
        head = _CALL.pack(*self._what, at_us, latency_ms, self._version, *sizes)
        return b"".join((head, name, model, request, response))


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
        kind=RequestKind(record[model_at:request_at].decode(), version, _METHODS[method], _APIS[api]),
        request_id=record[_CALL.size : model_at].decode(errors="replace"),
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
    id_bytes, model_bytes = _NAME_BYTES.unpack_from(record, _NAME_BYTES_AT)
    model_at = _CALL.size + id_bytes
    return record[:_AT_US], record[_VERSION : _CALL.size], record[model_at : model_at + model_bytes], len(record)


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
