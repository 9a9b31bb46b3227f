"""REST routes of capture and of feedback (labels that arrive later)."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import grpc

from airflow_hops.core.times import parse_time
from airflow_hops.serving.capture.capture import Capture
from airflow_hops.serving.capture.record import CapturedLabel, Label
from airflow_hops.serving.errors import ServingError, invalid_argument, not_found
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response

_FLUSH_S = 60.0
_ANSWER_S = 1.0
_FIELDS = {"model", "request_id", "row", "label", "at"}
_ONLY_NAME = "value"
_LARGEST_ROW = 2**31 - 1


class CaptureCounts(Protocol):
    """Request capture of this process, or of all workers."""

    def status(self) -> dict[str, Any]:
        """Returns the response to ``GET /v1/capture``."""

    def flush(self, timeout_s: float = ...) -> bool:
        """Writes the captured requests; returns whether that finished in time."""


def add_routes(routes: Routes, capture: CaptureCounts) -> None:
    """Adds ``/v1/capture`` and ``/v1/capture:flush``."""

    def status(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        return json_response(capture.status())

    def flush(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        left_s = request.deadline_s - time.monotonic() - _ANSWER_S
        done = capture.flush(min(_FLUSH_S, max(0.0, left_s)))
        return json_response({"flushed": done, **capture.status()}, 200 if done else 503)

    routes.add("GET /v1/capture", status)
    routes.add("POST /v1/capture:flush", flush)


def add_feedback_route(routes: Routes, capture: Capture, is_model: Callable[[str], bool]) -> None:
    """Adds ``/v1/feedback``.

    Args:
        routes: Routes to add it to.
        capture: Captures the labels.
        is_model: Returns whether a model exists, as names that clients make up must not become folders.
    """

    def feedback(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        if not capture.options.base_path:
            raise ServingError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "Feedback is kept where requests are captured: --capture_base_path",
            )
        labels = read_feedback(request.body)
        unknown = next((label.model for label in labels if not is_model(label.model)), None)
        if unknown is not None:
            raise not_found(f"Servable not found for request: Latest({unknown})")
        taken = capture.add_labels(labels)
        counts = {"accepted": taken, "dropped": len(labels) - taken}
        return json_response(counts, 200 if taken == len(labels) else 503)

    routes.add("POST /v1/feedback", feedback)


def read_feedback(body: bytes) -> list[CapturedLabel]:
    """Parses the labels in the body of ``POST /v1/feedback``: one JSON object, or a list of them.

    An object has ``model``, ``request_id`` and ``label`` (a number, string or boolean, or an object of them by name; a
    label without a name is called ``value``). Optional are ``row`` (default 0) and ``at``, the time at which the label
    became known (ISO 8601, or seconds since 1970; default now).

    Raises:
        ServingError: An object is invalid; the message contains its number and the reason.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise invalid_argument(f"JSON Parse error: {error}") from None
    entries = document if isinstance(document, list) else [document]
    now_us = time.time_ns() // 1000
    return [_label(entry, f"feedback {index}: ", now_us) for index, entry in enumerate(entries)]


def _label(entry: object, where: str, now_us: int) -> CapturedLabel:
    if not isinstance(entry, dict):
        raise _wrong(where, "the entry", entry, "an object with 'model', 'request_id' and 'label'")
    unknown = entry.keys() - _FIELDS
    if unknown:
        raise _wrong(where, "a field", min(unknown), f"one of {', '.join(sorted(_FIELDS))}")
    for name in ("model", "request_id"):
        if not isinstance(entry.get(name), str) or not entry[name] or not _is_unicode(entry[name]):
            raise _wrong(where, f"'{name}'", entry.get(name), "a text")
    row = entry.get("row", 0)
    if type(row) is not int or not 0 <= row <= _LARGEST_ROW:
        raise _wrong(where, "'row'", row, "the number of a row within the request, from 0")
    return CapturedLabel(
        model=entry["model"],
        request_id=entry["request_id"],
        row=row,
        values=_values(entry.get("label"), where),
        at_us=_time_us(entry["at"], where) if "at" in entry else now_us,
        received_us=now_us,
    )


def _values(arguments: object, where: str) -> dict[str, Label]:
    values = arguments if isinstance(arguments, dict) else {_ONLY_NAME: arguments}
    if not values:
        raise _wrong(where, "'label'", arguments, "a value, or an object of values by name")
    for name, value in values.items():
        plain = isinstance(value, (bool, int, float, str)) and _is_unicode(name) and _is_unicode(value)
        if not plain or (type(value) is int and not -(2**63) <= value < 2**63):
            which = "'label'" if values is not arguments else f"'label', {name!r}"
            raise _wrong(where, which, value, "a number, a string, true or false")
    return dict(values)


def _is_unicode(value: object) -> bool:
    """Returns whether a text can be encoded: JSON can escape a single surrogate, which cannot."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def _time_us(values: object, where: str) -> int:
    expected = "a time of ISO 8601, or seconds since 1970"
    try:
        if isinstance(values, str):
            time = parse_time(values)
            seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        elif isinstance(values, (int, float)) and not isinstance(values, bool) and math.isfinite(values):
            seconds = datetime.fromtimestamp(values, UTC).timestamp()
        else:
            raise _wrong(where, "'at'", values, expected)
    except (ValueError, OverflowError, OSError):
        raise _wrong(where, "'at'", values, expected) from None
    return int(seconds * 1e6)


def _wrong(where: str, what: str, result: object, expected: str) -> ServingError:
    return invalid_argument(f"{where}{what} is {json.dumps(result)[:100]}; expected {expected}")
