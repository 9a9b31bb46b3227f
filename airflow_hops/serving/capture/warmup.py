"""Writes captured requests as warm-up requests of the next version.

``python -m airflow_hops.serving.capture.warmup --captured=/srv/captured --model=flights --version_folder=…/flights/4``
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from airflow_hops.core.contract.capture_layout import PREDICTION_LOG_FOLDER, folder_name
from airflow_hops.serving.capture.files import CapturedFiles, open_files
from airflow_hops.serving.prediction_log import (
    WARMUP_FILE,
    LoggedCall,
    PredictionLogError,
    read_prediction_logs,
    write_prediction_logs,
)

MOST_REQUESTS = 1000
"""TensorFlow Serving refuses a file with more requests."""


class NoRequests(Exception):
    """No captured requests are available for warming up a model."""


def write_warmup_requests(captured: str, model: str, version_folder: Path, limit: int = MOST_REQUESTS) -> int:
    """Writes the newest distinct requests of a model as the warm-up requests of a version; returns their number.

    Args:
        captured: The server's ``--capture_base_path``: a folder, or a URL that fsspec opens.
        model: Model name.
        version_folder: Folder of the version, which is not served yet; its
            ``assets.extra/tf_serving_warmup_requests`` is replaced.
        limit: Maximum number of requests, up to 1,000.

    Raises:
        NoRequests: The folder has no captured requests in ``PredictionLog`` files.
        PredictionLogError: A file is damaged.
        FileNotFoundError: The version folder does not exist.
    """
    if not version_folder.is_dir():
        raise FileNotFoundError(f"{version_folder}: not a folder; expected a version's")
    distinct: dict[bytes, LoggedCall] = {}
    for call in _newest(open_files(captured), f"{folder_name(model)}/{PREDICTION_LOG_FOLDER}"):
        if call.method is not None and call.request:
            distinct.setdefault(hashlib.sha256(call.request).digest(), LoggedCall(call.method, call.request))
        if len(distinct) >= min(limit, MOST_REQUESTS):
            break
    if not distinct:
        raise NoRequests(
            f"{captured}: no captured request of model {model!r} in {PREDICTION_LOG_FOLDER}/*.tfrecord; the server "
            "writes them with --capture_format=prediction_log or both, and --capture_mode=inputs or all"
        )
    return write_prediction_logs(version_folder / WARMUP_FILE, distinct.values())


def _newest(files: CapturedFiles, folder: str) -> Iterator[LoggedCall]:
    for name in sorted(files.sizes(folder), reverse=True):
        with tempfile.NamedTemporaryFile() as local:
            local.write(files.read(folder, name))
            local.flush()
            yield from reversed(list(read_prediction_logs(local.name)))


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m airflow_hops.serving.capture.warmup",
        description="Writes the newest distinct captured requests of a model as warm-up requests of a version.",
    )
    parser.add_argument("--captured", required=True, help="the server's --capture_base_path")
    parser.add_argument("--model", required=True, help="model name")
    parser.add_argument("--version_folder", required=True, type=Path, help="folder of a version that is not served yet")
    parser.add_argument("--limit", type=int, default=MOST_REQUESTS, help="requests at most (default and most: 1000)")
    arguments = parser.parse_args()
    try:
        count = write_warmup_requests(
            arguments.captured, arguments.model, arguments.version_folder, limit=arguments.limit
        )
    except (NoRequests, PredictionLogError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    print(f"{count} requests in {arguments.version_folder / WARMUP_FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
