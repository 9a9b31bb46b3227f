"""Warm-up: a version answers the requests that were exported with it before anybody else's reach it."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import grpc

from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.servable import Call, Servable
from airflow_hops.serving_api.prediction_log import (
    WARMUP_FILE,
    LoggedCall,
    PredictionLogError,
    RecordError,
    read_prediction_logs,
)

log = logging.getLogger(__name__)

MAX_RECORDS = 1000
"""As many records may a warm-up file hold, as in TensorFlow Serving."""

# Refused by TensorFlow Serving with the number of the field; other records that are no request are passed over.
_SESSION_RUN = ("session_run_log", 5)


def warm_up(servable: Servable, folder: Path, iterations: int = 1) -> int:
    """Has a version answer the requests of its ``assets.extra/tf_serving_warmup_requests``, where it has that file.

    Args:
        servable: The version, not published yet.
        folder: Its folder.
        iterations: How often each request is asked; 0 leaves warm-up out.

    Returns:
        The number of records.

    Raises:
        ServingError: The file is damaged or holds too many records, or the version refuses one: it must not be served.
    """
    path = folder / WARMUP_FILE
    if not iterations or not path.is_file():
        return 0
    started_s = time.monotonic()
    count = 0
    try:
        for count, record in enumerate(read_prediction_logs(path), 1):
            _replay(servable, record, iterations, f"warm-up record {count} of {path}")
            if count > MAX_RECORDS:
                raise invalid_argument(f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at {path}")
    except RecordError as error:
        raise invalid_argument(str(error)) from error
    except PredictionLogError as error:
        raise ServingError(
            grpc.StatusCode.DATA_LOSS, f"{error}. Please verify your warmup data is in TFRecord format."
        ) from error
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
    return count


def _replay(servable: Servable, record: LoggedCall, iterations: int, where: str) -> None:
    if record.log_type == _SESSION_RUN[0]:
        raise ServingError(
            grpc.StatusCode.UNIMPLEMENTED, f"Unsupported log_type for warmup: {_SESSION_RUN[1]} ({where})"
        )
    if record.method is None:
        return
    for _ in range(iterations):
        try:
            servable.answer(Call(record.method, record.request))
        except ServingError as error:
            raise ServingError(error.code, f"{error.message} ({where})") from error
