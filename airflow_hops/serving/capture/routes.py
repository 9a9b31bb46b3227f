"""REST routes of capture and feedback."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import grpc

from airflow_hops.serving.capture.capture import Capture, CaptureSource
from airflow_hops.serving.capture.feedback import read_feedback
from airflow_hops.serving.errors import ServingError, not_found
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response

_FLUSH_S = 60.0
_ANSWER_S = 1.0


def add_routes(routes: Routes, capture: CaptureSource) -> None:
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
        routes: Where it is added.
        capture: What keeps the labels.
        is_model: Whether there is a model of a name: names that clients make up must not become folders.
    """

    def feedback(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        if not capture.options.base_path:
            raise ServingError(
                grpc.StatusCode.FAILED_PRECONDITION, "Feedback is kept where requests are captured: --capture_base_path"
            )
        labels = read_feedback(request.body)
        unknown = next((label.model for label in labels if not is_model(label.model)), None)
        if unknown is not None:
            raise not_found(f"Servable not found for request: Latest({unknown})")
        taken = capture.add_labels(labels)
        counts = {"accepted": taken, "dropped": len(labels) - taken}
        return json_response(counts, 200 if taken == len(labels) else 503)

    routes.add("POST /v1/feedback", feedback)
