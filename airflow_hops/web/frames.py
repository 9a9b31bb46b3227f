"""Headers that stop other sites from framing the pages, and browsers from running scripts in other responses."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

NO_OTHER_SITE = "frame-ancestors 'self'"
NOTHING = "default-src 'none'"
"""Content security policy of JSON, scripts and images, in case one is opened as a page."""
OWN_BASE = "base-uri 'self'; object-src 'none'"
"""Directives for Airflow's document that hold whichever scripts and styles Airflow and its plugins load."""
PAGES = re.compile(r"/plugin/hops(-run|-task)?(/|$)")
"""Paths of the pages, which Airflow serves with its single HTML document."""


class FrameGuard:
    """ASGI middleware that adds headers to responses. A route's own policy applies too: browsers enforce every policy.

    Args:
        app: The application.
        paths: Paths to guard; None for all.
        policy: Content security policy of responses that have none.
    """

    def __init__(self, app: ASGIApp, paths: re.Pattern[str] | None = None, policy: str | None = None) -> None:
        self._app, self._paths, self._policy = app, paths, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http" or (self._paths is not None and not self._paths.search(scope["path"])):
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": self._guarded(list(message["headers"]))}
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _guarded(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        there = {name.lower() for name, _ in headers}
        added = [("content-security-policy", NO_OTHER_SITE)]
        if self._policy is not None and b"content-security-policy" not in there:
            added.append(("content-security-policy", self._policy))
        once = [("x-frame-options", "SAMEORIGIN"), ("x-content-type-options", "nosniff")]
        added += [(name, value) for name, value in once if name.encode() not in there]
        return [*headers, *((name.encode(), value.encode()) for name, value in added)]
