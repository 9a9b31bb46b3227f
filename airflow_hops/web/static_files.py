"""Serves the pages' JavaScript and icon. Airflow compresses these responses like its own."""

from __future__ import annotations

import hashlib

from fastapi import APIRouter, HTTPException, Request, Response

from airflow_hops.web import pages

router = APIRouter(prefix="/static", include_in_schema=False)
_FOR_EVER = "public, max-age=31536000, immutable"
_ASK_FIRST = "no-cache"


@router.get("/{name}")
def static_file(request: Request, name: str) -> Response:
    """Returns the bundle, the notice that it is not built, or the icon.

    With the fingerprint of the current build (``?v=``), browsers may cache it forever; otherwise they revalidate with
    ``If-None-Match``.
    """
    if name not in (pages.BUNDLE, "icon.svg"):
        raise HTTPException(404, f"there is no file {name!r} here, only {pages.BUNDLE} and icon.svg")
    built, is_bundle = pages.fingerprint(), name == pages.BUNDLE
    path = pages.STATIC / name if is_bundle else pages.ASSETS / name
    content = (path if path.exists() else pages.ASSETS / "not_built.js").read_bytes()
    current = is_bundle and built != "none" and request.query_params.get("v") == built
    headers = {
        "Cache-Control": _FOR_EVER if current else _ASK_FIRST,
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"',
    }
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type="text/javascript" if is_bundle else "image/svg+xml")
