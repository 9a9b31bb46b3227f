"""The server's log by model and version.

A record belongs to the model and version in its message (``model flights version 3 …`` or ``version 3 of servable
flights …``), or in its ``extra={"model": …, "version": …}``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import re
import sys
import threading
from collections import deque
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from airflow_hops.serving import log_lines
from airflow_hops.serving.errors import invalid_argument
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response

log = logging.getLogger(__name__)

_KEPT_RECORDS = 10_000
_NAMES = (
    re.compile(r"\bversion (?P<version>\d+) of (?:model|servable) (?P<model>[^\s,:;]+)", re.IGNORECASE),
    re.compile(
        r"\b(?:model|servable) (?!config file)(?P<model>[^\s,:;]+)(?: version (?P<version>\d+))?", re.IGNORECASE
    ),
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One record of the log.

    Attributes:
        at_s: Seconds since 1970 UTC.
        level: INFO, WARNING, ….
        logger: Name of the logger.
        model: Model that the record is about, or "".
        version: Version that the record is about, or 0.
        message: Message, with the traceback, if any.
    """

    at_s: float
    level: str
    logger: str
    model: str
    version: int
    message: str


class LogBuffer(logging.Handler):
    """Stores the newest records in memory, or in a file that several processes share."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=_KEPT_RECORDS)
        self._text = logging.Formatter("%(message)s")
        self._file: Path | None = None

    def share(self, file: Path) -> None:
        """Stores further records in a file; whoever rotates it appends ``.1`` to its name."""
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        """Stores a record."""
        try:
            self.add(self.line_of(record))
        except Exception:
            self.handleError(record)

    def line_of(self, record: logging.LogRecord) -> LogLine:
        """Returns the line for a record."""
        model, version = _about(record)
        return LogLine(record.created, record.levelname, record.name, model, version, self._text.format(record))

    def add(self, line: LogLine) -> None:
        """Stores a line."""
        if self._file is None:
            self._lines.append(line)
            return
        with self._file.open("ab", buffering=0) as file:  # one write, which no other process's line divides
            file.write(json.dumps(astuple(line)).encode() + b"\n")

    def tail(
        self, count: int, model: str = "", version: int = 0, since_s: float = 0.0, level: int = 0
    ) -> list[LogLine]:
        """Returns the newest lines, oldest first.

        Args:
            count: Maximum number of lines.
            model: Return only lines of this model, unless empty.
            version: Return only lines of this version, unless 0.
            since_s: Return only lines after this time, in seconds since 1970 UTC.
            level: Minimum level, as in :mod:`logging`.
        """
        lines = self._kept()
        levels = logging.getLevelNamesMapping()
        result = (
            line
            for line in reversed(lines)
            if line.at_s > since_s
            and model in ("", line.model)
            and version in (0, line.version)
            and levels.get(line.level, 0) >= level
        )
        return list(islice(result, count))[::-1]

    def _kept(self) -> list[LogLine]:
        if self._file is None:
            with self.lock or threading.RLock():
                return list(self._lines)
        texts = []
        for file in (self._file.with_suffix(".1"), self._file):
            with contextlib.suppress(FileNotFoundError):
                texts += file.read_bytes().splitlines()
        return [LogLine(*json.loads(text)) for text in texts[-_KEPT_RECORDS:]]


BUFFER = LogBuffer()


def configure(log_file: str = "") -> None:
    """Sends the log to stderr, to memory, and to a file, if any, which may be rotated.

    Raises:
        OSError: The file cannot be written.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr), BUFFER]
    if log_file:
        Path(log_file).parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.handlers.WatchedFileHandler(log_file, encoding="utf-8"))
    log_lines.configure(format=log_lines.TIMED, handlers=handlers)


def add_routes(routes: Routes) -> None:
    """Adds ``GET /v1/logs?model=&version=&level=&lines=&since=``."""

    def tail(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        query = request.query
        count = _number(query.get("lines") or "100", "lines")
        version = _number(query.get("version") or "0", "version")
        text = query.get("level", "")
        levels = logging.getLevelNamesMapping()
        if text and text.upper() not in levels:
            raise invalid_argument(f"level is {text!r}; expected {', '.join(levels)}")
        since_s, level = _time(query.get("since", "")), (levels[text.upper()] if text else 0)
        lines = BUFFER.tail(count, query.get("model", ""), version, since_s, level)
        return json_response({"lines": [_document(line) for line in lines]})

    routes.add("GET /v1/logs", tail)


def _about(record: logging.LogRecord) -> tuple[str, int]:
    fields = record.__dict__
    if "model" in fields:
        return str(fields["model"]), int(fields.get("version") or 0)
    message = record.getMessage()
    for pattern in _NAMES:
        match = pattern.search(message)
        if match is not None:
            return match["model"], int(match["version"] or 0)
    return "", 0


def _document(line: LogLine) -> dict[str, object]:
    fields = asdict(line)
    return {"at": _iso(fields.pop("at_s")), **fields}


def _iso(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise invalid_argument(f"{name} is {text!r}; expected a whole number")
    return int(text)


def _time(text: str) -> float:
    if not text:
        return 0.0
    try:
        return float(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        raise invalid_argument(f"since is {text!r}; expected seconds since 1970, or a time as ISO 8601") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
