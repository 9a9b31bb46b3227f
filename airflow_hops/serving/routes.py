"""HTTP requests and answers as plain values, and which function answers which path."""

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

# How the parts of a path that vary are written in a route.
_PLACEHOLDERS = {
    "MODEL": r"(?P<model>[^/:]+)",
    "[/versions/N|/labels/L]": r"(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?",
}


_ERROR_HEADERS: Mapping[grpc.StatusCode, Mapping[str, str]] = {
    grpc.StatusCode.UNAVAILABLE: {"Retry-After": "1"},
    grpc.StatusCode.UNAUTHENTICATED: {"WWW-Authenticate": 'Bearer realm="model server"'},
}


def json_response(document: Any, status: int = 200) -> HttpResponse:
    """Returns an answer of one JSON document."""
    return HttpResponse(json.dumps(document).encode(), status)


def error_response(error: ServingError) -> HttpResponse:
    """Returns an error as TensorFlow Serving's REST API shows it."""
    headers = _ERROR_HEADERS.get(error.code, {})
    return HttpResponse(json.dumps({"error": error.message}).encode(), error.http_status, headers=headers)


@dataclass(frozen=True, slots=True)
class Route:
    """A route: the handler of a path, and the right that it takes.

    Attributes:
        right: What the client must be allowed.
        answer: Answers it.
        match: The match of its path.
    """

    right: Right
    answer: Answer
    match: re.Match[str]


class Routes:
    """Paths and what answers them; functions run in the threads of the REST API, and may wait, but for quick ones.

    Attributes:
        added: Route and path as :meth:`add` was given them.
    """

    def __init__(self) -> None:
        self._routes: list[tuple[str, re.Pattern[str], Right, Answer]] = []
        self.added: list[tuple[str, str | None]] = []

    def add(self, route: str, answer: Answer, path: str | None = None) -> None:
        """Adds a route.

        Args:
            route: ``METHOD /path``, as the table of rights has it; a GET answers HEAD as well.
            answer: Called with the request and the match of the path, which is case-insensitive; may raise
                ServingError.
            path: Where it is, for a route whose path can be chosen.

        Raises:
            LookupError: The table of rights has no such route.
        """
        self.added.append((route, path))
        method, _, pattern = route.partition(" ")
        for placeholder, expression in _PLACEHOLDERS.items():
            pattern = pattern.replace(placeholder, expression)
        compiled = re.compile(re.escape(path) if path else pattern, re.IGNORECASE)
        self._routes.append((method, compiled, right_of(route), answer))

    def find(self, method: str, path: str) -> Route:
        """Returns what answers a request.

        Args:
            method: GET, POST, …
            path: Decoded, without the query.

        Raises:
            ServingError: No route matches, in TensorFlow Serving's words.
        """
        for wanted, pattern, right, answer in self._routes:
            if wanted == ("GET" if method == "HEAD" else method):
                match = pattern.fullmatch(path)
                if match is not None:
                    return Route(right, answer, match)
        if path.lower().startswith("/v1/"):
            raise invalid_argument(f"Malformed request: {method} {path}")
        raise ServingError(grpc.StatusCode.NOT_FOUND, f"Not found: {path}")
