"""The web API's application, imported at its first request."""

from __future__ import annotations

from functools import cached_property
from typing import Any


class LazyApp:
    """Stands for the FastAPI application.

    Airflow loads plugins in every process, tasks included, and FastAPI takes longer to import than this package.
    """

    @cached_property
    def _app(self) -> Any:
        from airflow_hops.web.app import make_app

        return make_app()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one request (ASGI)."""
        await self._app(scope, receive, send)
