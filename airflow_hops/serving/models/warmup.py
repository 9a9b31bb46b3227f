"""Warm-up: a version answers exported or generated requests before those of clients.

The first run of a signature takes up to a second, in which TensorFlow places, prunes and compiles its graph.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import grpc
from google.protobuf.message import DecodeError

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Method, PredictionLog, PredictRequest, SignatureDefMap
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.inference import CLASSIFY, REGRESS
from airflow_hops.serving.models.servable import Call, Servable

# A version is published only after its warm-up, so no client waits for it. A recorded request that fails makes the load
# fail, as in TensorFlow Serving; a generated one is only a guess, and its errors are ignored.

log = logging.getLogger(__name__)

MAX_RECORDS = 1000
"""Maximum number of records in a warm-up file, as in TensorFlow Serving."""

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
"""Path of the warm-up requests in a version's folder."""

_METHODS = {
    "predict_log": Method.PREDICT,
    "classify_log": Method.CLASSIFY,
    "regress_log": Method.REGRESS,
    "multi_inference_log": Method.MULTI_INFERENCE,
}
# TensorFlow Serving refuses this log type by its field number; other records that are not requests are skipped.
_SESSION_RUN = ("session_run_log", 5)
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")

_REHEARSAL_S = 10.0
_REHEARSAL_ELEMENTS = 1 << 20


def warm_up(servable: Servable, folder: Path, iterations: int = 1) -> None:
    """Runs the requests in a version's ``assets.extra/tf_serving_warmup_requests``, or generated ones without the file.

    Args:
        servable: The version, not published yet.
        folder: Its folder.
        iterations: Number of runs of each request; 0 skips the warm-up.

    Raises:
        ServingError: The file is damaged or too long, or the version refuses a record; it must not be served then.
    """
    path = folder / WARMUP_FILE
    if not iterations:
        return
    if not path.is_file():
        _rehearse(servable)
        return
    started_s = time.monotonic()
    count = 0
    try:
        for count, payload in enumerate(_read_records(path), 1):
            _replay(servable, payload, iterations, f"warm-up record {count} of {path}")
            if count > MAX_RECORDS:
                raise invalid_argument(f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at {path}")
    except OSError as error:
        raise ServingError(grpc.StatusCode.INTERNAL, f"{path}: cannot be read: {error}") from error
    log.info(
        "model %s version %d warmed up with %d records of %s in %.2f s",
        servable.model,
        servable.version,
        count,
        path,
        time.monotonic() - started_s,
    )


def _rehearse(servable: Servable) -> None:
    """Runs signatures of Predict whose inputs are known once on a row of zeros and empty strings; ignores errors."""
    definitions = SignatureDefMap.FromString(servable.signature_defs).signature_def
    for name in definitions:
        definition = definitions[name]
        if definition.method_name in (CLASSIFY, REGRESS):
            continue
        request = PredictRequest()
        request.model_spec.name = servable.model
        request.model_spec.signature_name = name
        if all(_fill_with_nothing(request.inputs[alias], definition.inputs[alias]) for alias in definition.inputs):
            deadline_s = time.monotonic() + _REHEARSAL_S
            with contextlib.suppress(ServingError):
                servable.answer(Call(Method.PREDICT, request.SerializeToString(), deadline_s))


def _fill_with_nothing(proto: Any, info: Any) -> bool:
    """Fills a tensor with zeros or empty strings; returns False if its type or shape is unknown or too large."""
    tensor_type = tensors.BY_NUMBER.get(info.dtype)
    shape = tensors.shape_of(info)
    # Open dimensions are 1; a tensor without values decodes to zeros or empty strings.
    sizes = [max(1, size) for size in shape or ()]
    if tensor_type is None or shape is None or math.prod(sizes) > _REHEARSAL_ELEMENTS:
        return False
    tensors.fill_header(proto, tensor_type, sizes)
    return True


def _replay(servable: Servable, payload: bytes, iterations: int, where: str) -> None:
    """Runs the request of a serialized ``PredictionLog``."""
    record = PredictionLog()
    try:
        record.ParseFromString(payload)
    except DecodeError:
        raise invalid_argument(f"Failed to parse warmup record: {payload[:64]!r} ({where})") from None
    field = record.WhichOneof("log_type") or ""
    if field == _SESSION_RUN[0]:
        raise ServingError(
            grpc.StatusCode.UNIMPLEMENTED, f"Unsupported log_type for warmup: {_SESSION_RUN[1]} ({where})"
        )
    if field not in _METHODS:
        return
    for _ in range(iterations):
        try:
            servable.answer(Call(_METHODS[field], getattr(record, field).request))
        except ServingError as error:
            raise ServingError(error.code, f"{error.message} ({where})") from error


def _read_records(path: Path) -> Iterator[bytes]:
    """Yields the payloads of a TFRecord file.

    A record is the payload's length (uint64, little-endian), the length's masked CRC-32C, the payload, and its masked
    CRC-32C. Raises ServingError if the file is damaged or truncated.
    """

    def damage(what: str) -> ServingError:
        message = f"{path}: {what}. Please verify your warmup data is in TFRecord format."
        return ServingError(grpc.StatusCode.DATA_LOSS, message)

    offset = 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while offset < size:
            head = file.read(_LENGTH.size + _CRC.size)
            length_bytes, length_crc = head[: _LENGTH.size], head[_LENGTH.size :]
            if len(head) < _LENGTH.size + _CRC.size:
                raise damage(f"truncated record at {offset}")
            # Checked first, as a damaged length could be any number.
            if length_crc != _masked_crc(length_bytes):
                raise damage(f"corrupted record at {offset} (Is this even a TFRecord file?)")
            length = _LENGTH.unpack(length_bytes)[0]
            end = offset + len(head) + length + _CRC.size
            if end > size:
                raise damage(f"truncated record at {offset}")
            payload = file.read(length)
            if file.read(_CRC.size) != _masked_crc(payload):
                raise damage(f"corrupted record at {offset}")
            yield payload
            offset = end


def _masked_crc(payload: bytes) -> bytes:
    crc = google_crc32c.value(payload)
    return _CRC.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
