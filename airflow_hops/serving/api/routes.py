"""HTTP requests and answers as plain values, and which function answers which path."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from airflow_hops.serving.errors import ServingError, invalid_argument


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request whose body has arrived.

    Attributes:
        method: GET, POST, …
        path: Decoded, without the query.
        body: As sent, decompressed.
        headers: By case-insensitive name.
        query: Parameters of the URL.
        deadline_s: When the answer is too late, as of ``time.monotonic()``.
    """

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float = math.inf

    def json(self) -> Any:
        """Parses the body.

        Raises:
            ServingError: It is not JSON.
        """
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise invalid_argument(f"JSON Parse error: {error}") from None


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


Answer = Callable[[HttpRequest, "re.Match[str]"], HttpResponse]


def json_response(document: Any, status: int = 200) -> HttpResponse:
    """Returns an answer of one JSON document."""
    return HttpResponse(json.dumps(document).encode(), status)


def error_response(error: ServingError) -> HttpResponse:
    """Returns an error as TensorFlow Serving's REST API shows it."""
    headers = {"Retry-After": "1"} if error.code is grpc.StatusCode.UNAVAILABLE else {}
    return HttpResponse(json.dumps({"error": error.message}).encode(), error.http_status, headers=headers)


class Routes:
    """Paths and what answers them; functions run in the threads of the REST API, and may wait."""

    def __init__(self) -> None:
        self._routes: list[tuple[str, re.Pattern[str], Answer]] = []

    def add(self, method: str, pattern: str, answer: Answer) -> None:
        """Adds a route.

        Args:
            method: HTTP method; a GET answers HEAD as well.
            pattern: Regular expression of the whole path, case-insensitive.
            answer: Called with the request and the match; may raise ServingError.
        """
        self._routes.append((method, re.compile(pattern, re.IGNORECASE), answer))

    def find(self, request: HttpRequest) -> HttpResponse:
        """Answers a request.

        Raises:
            ServingError: No route matches, in TensorFlow Serving's words, or what a route raises.
        """
        method = "GET" if request.method == "HEAD" else request.method
        for wanted, pattern, answer in self._routes:
            if wanted == method:
                match = pattern.fullmatch(request.path)
                if match is not None:
                    return answer(request, match)
        if request.path.lower().startswith("/v1/"):
            raise invalid_argument(f"Malformed request: {request.method} {request.path}")
        raise ServingError(grpc.StatusCode.NOT_FOUND, f"Not found: {request.path}")
