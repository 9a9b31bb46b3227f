"""Answers that are made once: an entity tag for the browser's cache, and the bytes kept for the next who asks.

An artifact never changes, it is replaced by one of another fingerprint. So what an answer is made from, fingerprints
and parameters, names the answer.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import HTTPException, Request, Response
from pydantic import BaseModel

from airflow_hops.user_code.fingerprints import package_fingerprint

_HEADERS = {"Cache-Control": "private, no-cache"}
"""The browser keeps the answer, and asks each time whether it still holds: the user's rights may have changed."""


class ByteCache:
    """Keeps what was used last, up to a number of bytes. Threads may share it.

    Args:
        max_bytes: What all values together may hold; a larger value is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._values: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}

    def get(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The value of a key, made if there is none; of several threads that ask at once, one makes it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._values:
                    return self._values[key]
            try:
                value = make()
                self._keep(key, value)
                return value
            finally:
                with self._lock:
                    self._making.pop(key, None)

    def _keep(self, key: str, value: bytes) -> None:
        with self._lock:
            if len(value) > self.max_bytes or key in self._values:
                return
            self._values[key] = value
            self.size_bytes += len(value)
            while self.size_bytes > self.max_bytes:
                self.size_bytes -= len(self._values.popitem(last=False)[1])


_answers = ByteCache(64 << 20)


def cached_answer(
    request: Request,
    made_from: tuple[Any, ...],
    make: Callable[[], BaseModel | bytes],
    media_type: str = "application/json",
) -> Response:
    """Answers with what is made from artifacts that cannot change; 304 to who has it already.

    A route that uses it names its ``response_model``, for the document, and returns this response. It must have checked
    access before: the cache knows no users.

    Args:
        request: The request.
        made_from: Fingerprints and parameters, JSON values; together with the route and the version of this package
            they decide what ``make`` returns.
        make: Makes the answer: a response model, or bytes of ``media_type``.
        media_type: Of what ``make`` returns.

    Raises:
        HTTPException: 304, the browser has the answer.
    """
    route = getattr(request.scope.get("route"), "path", request.url.path)
    digest = hashlib.sha256(json.dumps([_code(), route, made_from]).encode()).hexdigest()
    headers = {**_HEADERS, "ETag": f'W/"{digest[:32]}"'}
    if headers["ETag"] in [each.strip() for each in request.headers.get("if-none-match", "").split(",")]:
        raise HTTPException(304, headers=headers)
    return Response(_answers.get(digest, lambda: _bytes(make())), headers=headers, media_type=media_type)


@cache
def _code() -> str:
    """What makes the answers: SHA-256 (hex) of the sources of both sides."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join([package_fingerprint().encode(), *map(Path.read_bytes, sources)])).hexdigest()


def _bytes(value: BaseModel | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.model_dump_json().encode()
