"""Reads and writes TFRecord files of ``PredictionLog``: TensorFlow Serving's request logs and warm-up requests.

A TFRecord consists of the payload's length (uint64, little-endian), the length's masked CRC-32C, the payload, and its
masked CRC-32C. Requests and responses stay serialized as they were sent.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
from google.protobuf.message import DecodeError

from airflow_hops.core.processes.files import staged
from airflow_hops.core.serving_api.protocol import Method, PredictionLog

PathLike = str | os.PathLike[str]

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
"""Path of the warm-up requests in a version's folder."""

_FIELDS = {
    Method.PREDICT: "predict_log",
    Method.CLASSIFY: "classify_log",
    Method.REGRESS: "regress_log",
    Method.MULTI_INFERENCE: "multi_inference_log",
}
_METHODS = {field: method for method, field in _FIELDS.items()}
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


class PredictionLogError(ValueError):
    """A file is not a TFRecord file or is truncated, or a call cannot be recorded."""


class RecordError(PredictionLogError):
    """A complete record is not a ``PredictionLog``."""


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One logged request.

    Attributes:
        method: Called method; None for an empty record and for kinds that are not calls of ``PredictionService``
            (``log_type`` names them).
        request: The serialized request.
        response: The serialized response; empty if only the request was logged.
        log_type: Field of the record: ``predict_log``, ``session_run_log``, …; empty if none is set.
        timestamp_s: Time of logging, seconds since 1970; 0 if it is missing.
    """

    method: Method | None
    request: bytes
    response: bytes = b""
    log_type: str = ""
    timestamp_s: int = 0


def to_record(method: Method, request: bytes, response: bytes = b"", timestamp_s: int = 0) -> bytes:
    """Returns one framed record of a call.

    An empty response logs only the request, and a timestamp (seconds since 1970) of 0 is omitted.
    """
    log = PredictionLog()
    call = getattr(log, _FIELDS[method])
    call.request = request
    if response:
        call.response = response
    if timestamp_s:
        log.log_metadata.timestamp_secs = timestamp_s
    return frame(log.SerializeToString())


def frame(payload: bytes) -> bytes:
    """Adds TFRecord framing to one payload."""
    length = _LENGTH.pack(len(payload))
    return b"".join((length, _masked_crc(length), payload, _masked_crc(payload)))


def write_prediction_logs(path: PathLike, calls: Iterable[LoggedCall]) -> int:
    """Writes a TFRecord file, which appears by rename when complete; returns the number of records."""
    target = Path(path)
    count = 0
    with staged(target, durable=True) as staging, staging.open("wb") as file:
        for call in calls:
            if call.method is None:
                raise PredictionLogError(f"{target}: record {count} has no method; expected one of {[*_FIELDS]}")
            file.write(to_record(call.method, call.request, call.response, call.timestamp_s))
            count += 1
    return count


def read_prediction_logs(path: PathLike) -> Iterator[LoggedCall]:
    """Reads a TFRecord file record by record.

    Raises:
        RecordError: A record is not a ``PredictionLog``.
        PredictionLogError: The file is damaged (the message names the byte) or truncated.
        OSError: The file cannot be read.
    """
    for payload in read_records(path):
        log = PredictionLog()
        try:
            log.ParseFromString(payload)
        except DecodeError:
            raise RecordError(f"Failed to parse warmup record: {payload[:64]!r} from {path}") from None
        yield _logged_call(log)


def read_records(path: PathLike) -> Iterator[bytes]:
    """Yields the payloads of a TFRecord file; raises PredictionLogError if it is damaged or truncated."""
    offset = 0
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while offset < size:
            head = file.read(_LENGTH.size + _CRC.size)
            length_bytes, length_crc = head[: _LENGTH.size], head[_LENGTH.size :]
            if len(head) < _LENGTH.size + _CRC.size:
                raise PredictionLogError(f"{path}: truncated record at {offset}")
            # Checked first, as a damaged length could be any number.
            if length_crc != _masked_crc(length_bytes):
                raise PredictionLogError(f"{path}: corrupted record at {offset} (Is this even a TFRecord file?)")
            length = _LENGTH.unpack(length_bytes)[0]
            end = offset + len(head) + length + _CRC.size
            if end > size:
                raise PredictionLogError(f"{path}: truncated record at {offset}")
            payload = file.read(length)
            if file.read(_CRC.size) != _masked_crc(payload):
                raise PredictionLogError(f"{path}: corrupted record at {offset}")
            yield payload
            offset = end


def _logged_call(log: Any) -> LoggedCall:
    field = log.WhichOneof("log_type") or ""
    method = _METHODS.get(field)
    if method is None:
        return LoggedCall(None, b"", log_type=field)
    call = getattr(log, field)
    return LoggedCall(method, call.request, call.response, field, log.log_metadata.timestamp_secs)


def _masked_crc(payload: bytes) -> bytes:
    crc = google_crc32c.value(payload)
    return _CRC.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
