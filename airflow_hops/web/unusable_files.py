"""Answers requests that fail on unusable content of the store with the addresses of the files.

Files of the store may be damaged or written by others: their JSON may have any shape, and numbers that no response can
hold. Rather than check for this everywhere, a middleware handles the failures.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airflow_hops.core.redaction import redacted
from airflow_hops.core.store.artifact_store import files_read

_FILES = 3
_CHARACTERS = 300
_THREADS = 8

log = logging.getLogger(__name__)


def reading_threads() -> ThreadPoolExecutor:
    """Returns threads that read files for one request, since each file of a remote store takes a round trip."""
    return ThreadPoolExecutor(_THREADS, initializer=files_read.set, initargs=(files_read.get(),))


class UnusableFiles:
    """ASGI middleware that answers 502 if a route fails after it has read files of the store."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        read: list[str] = []
        files_read.set(read)
        began = False

        async def note(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception as error:
            if began or not read:
                raise
            log.exception("%s", scope.get("path"))
            last = ", ".join(list(dict.fromkeys(reversed(read)))[:_FILES])
            cause = f"{type(error).__name__}: {error}"[:_CHARACTERS]
            detail = (
                f"contents of the store cannot be shown ({cause}): a file was damaged, or written by another program. "
                f"The files read last: {last}. Restore the file, or clear the task that writes it"
            )
            await JSONResponse({"detail": redacted(detail)}, 502)(scope, receive, send)
