"""The newest lines of ``--log_file``, by model and version.

A line belongs to the model and version in its message (``model flights version 3 …`` or ``version 3 of servable
flights …``).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from airflow_hops.serving.access import Right
from airflow_hops.serving.errors import invalid_argument
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response

_READ_BYTES = 4 * 2**20
# The head of a record as serving.log_lines.TIMED writes it; its message may have several lines.
_HEAD = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (.+?) (\S+): ", re.MULTILINE)
_NAMES = (
    re.compile(r"\bversion (?P<version>\d+) of (?:model|servable) (?P<model>[^\s,:;]+)", re.IGNORECASE),
    re.compile(
        r"\b(?:model|servable) (?!config file)(?P<model>[^\s,:;]+)(?: version (?P<version>\d+))?", re.IGNORECASE
    ),
)


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """One record of the log.

    Attributes:
        at: Time with its zone.
        level: INFO, WARNING, ….
        logger: Name of the logger.
        model: Model that the record is about, or "".
        version: Version that the record is about, or 0.
        message: Message, with the traceback, if any.
    """

    at: datetime
    level: str
    logger: str
    model: str
    version: int
    message: str


def newest_lines(log_file: Path) -> Iterator[LoggedLine]:
    """Yields the records in the last 4 MiB of a log, newest first; none if there is no such file."""
    try:
        with log_file.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _READ_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:  # it was moved, and nothing was logged since
        return
    end = len(text)
    for head in reversed(list(_HEAD.finditer(text))):
        message, end = text[head.end() : end].rstrip("\n"), head.start()
        time = datetime.strptime(head[1], "%Y-%m-%d %H:%M:%S,%f").astimezone()
        named = next((match for pattern in _NAMES if (match := pattern.search(message))), None)
        model, version = (named["model"], int(named["version"] or 0)) if named else ("", 0)
        yield LoggedLine(time, head[2], head[3], model, version, message)


def add_routes(routes: Routes, log_file: Path) -> None:
    """Adds ``GET /v1/logs?model=&version=&level=&lines=&since=``."""

    def tail(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        query = request.query
        count = _number(query.get("lines") or "100", "lines")
        model, version = query.get("model", ""), _number(query.get("version") or "0", "version")
        levels = logging.getLevelNamesMapping()
        lowest = query.get("level", "").upper()
        if lowest and lowest not in levels:
            raise invalid_argument(f"level is {query['level']!r}; expected {', '.join(levels)}")
        since = _time(query.get("since", ""))
        lines = (
            line
            for line in newest_lines(log_file)
            if line.at > since
            and model in ("", line.model)
            and version in (0, line.version)
            and levels.get(line.level, 0) >= levels.get(lowest, 0)
        )
        documents = [
            {**asdict(line), "at": line.at.astimezone(UTC).isoformat(timespec="milliseconds")}
            for line in islice(lines, count)
        ]
        return json_response({"lines": documents[::-1]})

    routes.add("GET /v1/logs", tail, right=Right.CONTROL)


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise invalid_argument(f"{name} is {text!r}; expected a whole number")
    return int(text)


def _time(text: str) -> datetime:
    try:
        time = datetime.fromtimestamp(float(text or 0), UTC)
    except (ValueError, OverflowError, OSError):
        try:
            time = datetime.fromisoformat(text.replace(" ", "+"))
        except ValueError:
            raise invalid_argument(f"since is {text!r}; expected seconds since 1970, or a time as ISO 8601") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
