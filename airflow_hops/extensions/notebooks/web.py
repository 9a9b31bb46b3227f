"""The page of an executed notebook."""

from __future__ import annotations

import contextlib
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape, unescape
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Query, Response
from fastapi.responses import HTMLResponse

from airflow_hops.extensions.notebooks.core import NOTEBOOK_PAGE
from airflow_hops.web.artifacts.files import ARTIFACT_PREFIX, stream_file
from airflow_hops.web.artifacts.lookup import TaskArtifact
from airflow_hops.web.extension_pages import ExtensionPage
from airflow_hops.web.pages import STATIC

router = APIRouter(prefix=ARTIFACT_PREFIX, tags=["artifacts"])
PAGE = ExtensionPage(router=router, bundle=STATIC / "notebooks.umd.js", kind="notebook")
# A notebook's scripts run in a document with an opaque origin: they have no cookies, load nothing, send no requests
# (not even to this API) and no forms. This does not stop the document from navigating to an address that contains what
# it has read; frame-src of the framing document does. But no browser policy covers WebRTC, by which scripts reach any
# host, so scripts of others run only if the reader asks for them.
_NOTEBOOK_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src {}; style-src 'unsafe-inline'; img-src data:; "
    "font-src data:; form-action 'none'"
)
_DIVE_PAGE = Path(__file__).with_name("ml") / "dive.html"
_DIVE_SCRIPT = _DIVE_PAGE.read_text().partition("<script>")[2].partition("</script>")[0]
_FRAME_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-src 'self'; base-uri 'none'",
    "Cache-Control": "private, no-store",
}
_FRAME = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Notebook</title>
<style>html, body, iframe {{ margin: 0; border: 0; width: 100%; height: 100%; display: block }}
body {{ display: flex; flex-direction: column }} p {{ margin: 4px 8px; font: 13px sans-serif }}</style></head>
<body>{}</body></html>
"""
_WITHOUT_SCRIPTS = """<p>Scripts of this notebook do not run here, since they could send what they read to other hosts.
<a href="?scripts=true">Run them</a></p><iframe title="Notebook" sandbox="allow-scripts" src="?framed=true"></iframe>"""
_WITH_SCRIPTS = """<iframe title="Notebook" sandbox="allow-scripts" src="?framed=true&amp;scripts=true"></iframe>"""


@router.get(
    "/page", response_class=HTMLResponse, responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}}
)
def show_notebook(
    found: TaskArtifact,
    framed: Annotated[bool, Query(description="The notebook's own document, for the frame")] = False,
    scripts: Annotated[bool, Query(description="Whether its scripts run, which can reach other hosts")] = False,
    sec_fetch_dest: Annotated[str, Header(include_in_schema=False)] = "",
    sec_fetch_site: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Returns the page of an executed notebook in a frame, so that its scripts cannot act as the reader.

    Raises:
        HTTPException: 404, the artifact is not a notebook; 410, it was deleted; 502, the store cannot be read.
    """
    # The notebook's document has another origin, so a link or refresh in it cannot enable its scripts.
    scripts = scripts and sec_fetch_site in ("same-origin", "none")
    if found.artifact.kind != "notebook":
        raise HTTPException(404, "this is not a notebook")
    content = stream_file(found, NOTEBOOK_PAGE)
    if not framed or sec_fetch_dest == "document":
        return HTMLResponse(_FRAME.format(_WITH_SCRIPTS if scripts else _WITHOUT_SCRIPTS), headers=_FRAME_HEADERS)
    page = b"".join(content)
    sources = "'unsafe-inline'" if scripts else " ".join(_known_scripts(page.decode(errors="replace"))) or "'none'"
    headers = {"Content-Security-Policy": _NOTEBOOK_POLICY.format(sources), "Cache-Control": "private, no-store"}
    return Response(page, media_type="text/html; charset=utf-8", headers=headers)


def _known_scripts(page: str) -> Iterator[str]:
    """Yields hashes of scripts by ``pipeline.dive`` of a notebook, whose frames differ only in their data."""
    start, end = (escape(part) for part in _DIVE_SCRIPT.split("DATA"))
    for match in re.finditer(f"{re.escape(start)}([^<>]*?){re.escape(end)}", page):
        with contextlib.suppress(ValueError):
            json.loads(unescape(match[1]))
            yield f"'sha256-{b64encode(sha256(unescape(match[0]).encode()).digest()).decode()}'"
