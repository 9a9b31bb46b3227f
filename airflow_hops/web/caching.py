"""Answers that are made once: an entity tag for the browser's cache, and the bytes for the next request.

An artifact never changes, it is replaced by one of another fingerprint. So fingerprints and parameters name an answer.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from cachetools import LRUCache, cached
from fastapi import HTTPException, Request, Response
from pydantic import BaseModel

from airflow_hops.user_code.fingerprints import package_fingerprint

_HEADERS = {"Cache-Control": "private, no-cache"}
"""The browser keeps the answer, and asks each time whether it still holds: the user's rights may have changed."""


_answers: LRUCache[str, bytes] = LRUCache(64 << 20, getsizeof=len)


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
    return Response(_made(digest, make), headers=headers, media_type=media_type)


@cache
def _code() -> str:
    """Returns the fingerprint of this code: SHA-256 (hex) of the sources of both sides."""
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join([package_fingerprint().encode(), *map(Path.read_bytes, sources)])).hexdigest()


# Of several threads that ask at once, one makes the answer, and the others wait for it.
@cached(_answers, key=lambda digest, make: digest, condition=threading.Condition())
def _made(digest: str, make: Callable[[], BaseModel | bytes]) -> bytes:
    value = make()
    return value if isinstance(value, bytes) else value.model_dump_json().encode()
