"""Responses that download a report."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

from fastapi.responses import Response

Format = Literal["html", "md"]
_TYPES = {"html": "text/html", "md": "text/markdown"}


def send_report(title: str, text: str, format: Format = "html") -> Response:
    """Returns the response that downloads a report."""
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(title.replace('/', '-'), safe='')}.{format}",
        "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:",
        "Cache-Control": "private, no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(text, media_type=f"{_TYPES[format]}; charset=utf-8", headers=headers)
