"""The file that says that the server is ready (``--ready_file``)."""

from __future__ import annotations

import json
import os
from pathlib import Path

from airflow_hops.core.processes.files import write_atomically


class ReadyFile:
    """The file, which exists exactly while the server is ready; an empty path is no file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None

    def write(self, grpc_port: int, rest_api_port: int | None = None) -> None:
        """Writes process id and ports; a REST API that is off has port 0."""
        if self._path is not None:
            ports = {"grpc_port": grpc_port, "rest_api_port": rest_api_port or 0}
            write_atomically(self._path, json.dumps({"pid": os.getpid(), **ports}) + "\n")

    def remove(self) -> None:
        """Removes the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
