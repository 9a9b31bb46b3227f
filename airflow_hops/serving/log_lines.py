"""Logging of the server and its processes: own lines from INFO, lines of libraries from WARNING.

A store's library may log every request at INFO, and base paths are polled every second.
"""

from __future__ import annotations

import logging
import logging.handlers
from pathlib import Path

TIMED = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure(log_file: str = "") -> None:
    """Sends the log of this process to stderr, and to a file, if any, which may be rotated.

    Raises:
        OSError: The file cannot be written.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if log_file:
        Path(log_file).parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.handlers.WatchedFileHandler(log_file, encoding="utf-8"))
    logging.basicConfig(level=logging.WARNING, format=TIMED, handlers=handlers)
    logging.getLogger("airflow_hops").setLevel(logging.INFO)
