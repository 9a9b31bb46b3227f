"""Serves the pages' JavaScript and icon, and the JavaScript of extensions. Airflow compresses them like its own."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request, Response

from airflow_hops.web import pages
from airflow_hops.web.extension_pages import bundles

router = APIRouter(prefix="/static", include_in_schema=False)
_FOR_EVER = "public, max-age=31536000, immutable"
_ASK_FIRST = "no-cache"
_NOT_BUILT = "not_built.js"


@router.get("/{name}")
def static_file(request: Request, name: str) -> Response:
    """Returns a bundle, the notice that it is not built, or the icon.

    With the fingerprint of the current content (``?v=``), browsers may cache it forever; otherwise they revalidate with
    ``If-None-Match``.
    """
    files = {pages.BUNDLE: pages.STATIC / pages.BUNDLE, "icon.svg": pages.ASSETS / "icon.svg", **bundles(request)}
    if name not in files:
        raise HTTPException(404, f"there is no file {name!r} here, only {', '.join(files)}")
    path = files[name] if files[name].exists() else pages.ASSETS / _NOT_BUILT
    content = path.read_bytes()
    version = pages.version_of(content)
    headers = {
        "Cache-Control": _FOR_EVER if request.query_params.get("v") == version else _ASK_FIRST,
        "ETag": f'"{version}"',
    }
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type="image/svg+xml" if name == "icon.svg" else "text/javascript")
