"""HTTP requests and responses as plain values, and the routing of paths to functions."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from airflow_hops.serving.access import Right, right_of
from airflow_hops.serving.errors import ServingError, invalid_argument


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request with its complete body.

    Attributes:
        method: GET, POST, …
        path: Decoded path, without the query.
        body: Decompressed body.
        headers: Headers by case-insensitive name.
        query: Parameters of the URL.
        deadline_s: Deadline of the answer, as of ``time.monotonic()``.
    """

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float = math.inf

    def json(self) -> Any:
        """Parses the body; raises ServingError if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise invalid_argument(f"JSON Parse error: {error}") from None


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


Answer = Callable[[HttpRequest, "re.Match[str]"], HttpResponse]

# Regular expressions of the variable parts of routes.
_PLACEHOLDERS = {
    "MODEL": r"(?P<model>[^/:]+)",
    "[/versions/N|/labels/L]": r"(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?",
}


_ERROR_HEADERS: Mapping[grpc.StatusCode, Mapping[str, str]] = {
    grpc.StatusCode.UNAVAILABLE: {"Retry-After": "1"},
    grpc.StatusCode.UNAUTHENTICATED: {"WWW-Authenticate": 'Bearer realm="model server"'},
}


def json_response(document: object, status: int = 200) -> HttpResponse:
    """Returns a response with one JSON document."""
    return HttpResponse(json.dumps(document).encode(), status)


def error_response(error: ServingError) -> HttpResponse:
    """Returns an error in the form of TensorFlow Serving's REST API."""
    headers = _ERROR_HEADERS.get(error.code, {})
    return HttpResponse(json.dumps({"error": error.message}).encode(), error.http_status, headers=headers)


def read_percents(document: object, kind: str, example: str) -> dict[Any, Any] | None:
    """Returns the percents in the body of a request, by version or other name.

    Args:
        document: The body.
        kind: Kind of traffic, for errors.
        example: A valid body, for errors.

    Raises:
        ServingError: The body has another form.
    """
    expected = f'expected {example} or {{"percents": null}}'
    if not isinstance(document, dict) or document.keys() != {"percents"}:
        raise invalid_argument(f"The body of a {kind} request is not of its form; {expected}")
    percents = document["percents"]
    if percents is not None and not isinstance(percents, dict):
        raise invalid_argument(f"percents is of type {type(percents).__name__}; {expected}")
    return percents and {
        int(target) if target.isascii() and target.isdigit() and len(target) < 19 else target: percent
        for target, percent in percents.items()
    }


class Routes:
    """Maps paths to their handlers, which run in threads of the REST API and may block."""

    def __init__(self) -> None:
        self._routes: list[tuple[str, re.Pattern[str], Right, Answer]] = []

    def add(self, route: str, answer: Answer, right: Right | None = None) -> None:
        """Adds a route; raises LookupError if it gives no right, and the table of rights does not contain it.

        Args:
            route: ``METHOD /path``; a GET route answers HEAD as well.
            answer: Called with the request and the match of the path, which is case-insensitive; may raise
                ServingError.
            right: Right that clients need; None for that of the table. ``Right.OPEN`` has the event loop call
                ``answer``, which then must not block, and gets no body.
        """
        method, _, pattern = route.partition(" ")
        for placeholder, expression in _PLACEHOLDERS.items():
            pattern = pattern.replace(placeholder, expression)
        compiled = re.compile(pattern, re.IGNORECASE)
        self._routes.append((method, compiled, right or right_of(route), answer))

    def find(self, method: str, path: str) -> tuple[Right, Answer, re.Match[str]]:
        """Finds the route of a method and a decoded path: the right that clients need, the handler, and the match.

        Raises:
            ServingError: There is none, in TensorFlow Serving's words.
        """
        for wanted, pattern, right, answer in self._routes:
            if wanted == ("GET" if method == "HEAD" else method):
                match = pattern.fullmatch(path)
                if match is not None:
                    return right, answer, match
        if path.lower().startswith("/v1/"):
            raise invalid_argument(f"Malformed request: {method} {path}")
        raise ServingError(grpc.StatusCode.NOT_FOUND, f"Not found: {path}")
