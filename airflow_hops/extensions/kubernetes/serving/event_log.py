"""A log of CloudEvents: what KServe's logger posts, as JSON lines."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import grpc

from airflow_hops.core.processes.files import make_private
from airflow_hops.serving.access import Right
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response

# An event is acknowledged when its line is in the kernel's hands, so that it survives a kill of this process; a line
# that is cut off by a kill was not. Each process begins files of its own, one an hour, since only the end of a file may
# be cut off. Copies of an event stay in the log: who reads it takes each once.

_REQUIRED = ("id", "type", "source", "specversion")


class EventLog:
    """Appends events to files ``<folder>/<hour>-<random>.jsonl``; thread-safe.

    Raises:
        OSError: The folder cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        make_private(folder)
        self._folder, self._name = folder, secrets.token_hex(6)
        self._lock = threading.Lock()
        self._hour, self._file, self._end = "", -1, 0

    def add_routes(self, routes: Routes) -> None:
        """Adds ``POST /v1/kserve/events``."""
        routes.add("POST /v1/kserve/events", self._post, right=Right.FEEDBACK)

    def _post(self, request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        event = {"time": datetime.now(UTC).isoformat(), **event_of(request)}
        try:
            self.append(event, time.time())
        except OSError as error:
            raise ServingError(grpc.StatusCode.UNAVAILABLE, f"the event is not stored: {error}") from error
        return json_response({"accepted": 1})

    def append(self, event: dict[str, str], now_s: float) -> None:
        """Appends an event, completely or not at all. Raises OSError."""
        line = json.dumps(event).encode() + b"\n"
        hour = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H")
        with self._lock:
            if hour != self._hour:
                path = self._folder / f"{hour}-{self._name}.jsonl"
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                if self._file >= 0:
                    os.close(self._file)
                self._file, self._hour, self._end = file, hour, os.fstat(file).st_size
            written = 0
            try:
                while written < len(line):
                    written += os.pwrite(self._file, line[written:], self._end + written)
            except OSError:
                os.ftruncate(self._file, self._end)
                raise
            self._end += written


def event_of(request: HttpRequest) -> dict[str, str]:
    """Returns the CloudEvent of a request in HTTP's binary mode: its attributes, and the body as ``data_base64``.

    Raises:
        ServingError: It is not such an event.
    """
    event = {name[3:].lower(): value for name, value in request.headers.items() if name.lower().startswith("ce-")}
    missing = [name for name in _REQUIRED if not event.get(name)]
    if missing:
        raise invalid_argument(
            f"the header ce-{missing[0]} is missing; expected a CloudEvent in HTTP's binary mode, as KServe's logger "
            "posts it"
        )
    try:
        has_zone = "time" not in event or datetime.fromisoformat(event["time"]).tzinfo is not None
    except ValueError:
        has_zone = False
    if not has_zone:  # it would be the error of each run that reads the log
        raise invalid_argument(f"the header ce-time is {event['time']!r}; expected such as 2026-03-01T10:00:00Z")
    event["datacontenttype"] = request.headers.get("Content-Type", "")
    event["data_base64"] = base64.b64encode(request.body).decode()
    return event
