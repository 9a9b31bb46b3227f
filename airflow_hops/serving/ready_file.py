"""The file that exists exactly while the server is ready (``--ready_file``); an empty path is no file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from airflow_hops.core.processes.files import write_atomically


def write_ready_file(path: str, grpc_port: int, rest_api_port: int | None = None) -> None:
    """Writes process id and ports; a REST API that is off has port 0."""
    if path:
        ports = {"grpc_port": grpc_port, "rest_api_port": rest_api_port or 0}
        write_atomically(Path(path), json.dumps({"pid": os.getpid(), **ports}) + "\n")


def remove_ready_file(path: str) -> None:
    """Removes the file."""
    if path:
        Path(path).unlink(missing_ok=True)
