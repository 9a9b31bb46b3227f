"""Serves the pages' JavaScript and icon."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response

from airflow_hops.web import pages

router = APIRouter(prefix="/static", include_in_schema=False)
_ENCODINGS = (("br", ".br"), ("gzip", ".gz"))
_FOR_EVER = "public, max-age=31536000, immutable"
_ASK_FIRST = "no-cache"


@router.get("/{name}")
def static_file(request: Request, name: str) -> Response:
    """The bundle, compressed as the browser likes it best, or the notice that it is not built; or the icon.

    Under the fingerprint of the present build (``?v=``) a browser may keep it for ever; else it asks again with
    what it has (``If-None-Match``).
    """
    if name == "icon.svg":
        return _answer(request, (pages.ASSETS / name).read_bytes(), "image/svg+xml", {"Cache-Control": _ASK_FIRST})
    if name != pages.BUNDLE:
        raise HTTPException(404, f"there is no file {name!r} here, only {pages.BUNDLE} and icon.svg")
    built = pages.fingerprint()
    current = built != "none" and request.query_params.get("v") == built
    path, headers = _choose(request.headers.get("accept-encoding", ""))
    headers["Cache-Control"] = _FOR_EVER if current else _ASK_FIRST
    return _answer(request, path.read_bytes(), "text/javascript", headers)


def _choose(accepted: str) -> tuple[Path, dict[str, str]]:
    bundle = pages.STATIC / pages.BUNDLE
    if not bundle.exists():
        return pages.ASSETS / "not_built.js", {}
    wanted = {part.partition(";")[0].strip() for part in accepted.split(",")}
    for encoding, suffix in _ENCODINGS:
        packed = bundle.with_name(bundle.name + suffix)
        if encoding in wanted and packed.exists():
            return packed, {"Content-Encoding": encoding, "Vary": "Accept-Encoding"}
    return bundle, {"Vary": "Accept-Encoding"}


def _answer(request: Request, content: bytes, media_type: str, headers: dict[str, str]) -> Response:
    etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {**headers, "ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)
