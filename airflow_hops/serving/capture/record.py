"""Records of the spool: each holds one answered request, undecoded, or one label."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count
from typing import NamedTuple

from airflow_hops.core.serving_api.protocol import CapturedRequest, Method
from airflow_hops.serving.capture.options import CaptureMode
from airflow_hops.serving.request_kind import RequestKind

Label = bool | int | float | str

_CALL, _LABEL = b"c", b"l"
_BY_LABEL = {method.label: method for method in Method}


def request_ids() -> Callable[[], str]:
    """Returns a function that generates globally unique request ids, at a tenth of a UUID's cost."""
    prefix, numbers = secrets.token_hex(8), count(1)
    return lambda: f"{prefix}-{next(numbers):x}"


class CapturedCall(NamedTuple):
    """One answered request.

    Attributes:
        kind: Model, version that answered, method and API.
        request_id: The client's request id, or a generated one.
        at_us: Arrival, microseconds since 1970 UTC.
        latency_ms: Milliseconds in the server.
        rows: Number of rows of the request.
        request: The serialized request; empty if inputs are not captured.
        response: The serialized response; empty if predictions are not captured.
    """

    kind: RequestKind
    request_id: str
    at_us: int
    latency_ms: float
    rows: int
    request: bytes
    response: bytes

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
    """The label of one row of a request, known after the answer.

    Attributes:
        model: Model name.
        request_id: Id of the request.
        row: Row within the request.
        values: Label by name.
        at_us: When the label became known, microseconds since 1970 UTC.
        received_us: When the server received it.
    """

    model: str
    request_id: str
    row: int
    values: dict[str, Label]
    at_us: int
    received_us: int


def pack(call: CapturedCall, mode: CaptureMode = "all") -> bytes:
    """Encodes a request as a record, without the parts that the mode excludes."""
    message = CapturedRequest(
        model=call.model,
        version=call.version,
        method=call.kind.method,
        api=call.kind.api,
        request_id=call.request_id.encode("utf-8", "replace"),
        at_us=call.at_us,
        latency_ms=call.latency_ms,
        rows=call.rows,
        request=b"" if mode == "predictions" else call.request,
        response=b"" if mode == "inputs" else call.response,
    )
    record: bytes = _CALL + message.SerializeToString()
    return record


def pack_label(label: CapturedLabel) -> bytes:
    """Encodes a label as a record."""
    return _LABEL + json.dumps(asdict(label)).encode()


def unpack(record: bytes) -> CapturedCall | CapturedLabel:
    """Decodes a record."""
    kind, content = record[:1], record[1:]
    if kind == _LABEL:
        return CapturedLabel(**json.loads(content))
    message = CapturedRequest.FromString(content)
    return CapturedCall(
        kind=RequestKind(message.model, message.version, message.method, message.api),
        request_id=message.request_id.decode(errors="replace"),
        at_us=message.at_us,
        latency_ms=message.latency_ms,
        rows=message.rows,
        request=message.request,
        response=message.response,
    )
