"""The Airflow plugin: the place where pages, web API and macros are registered."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_hops import preimports
from airflow_hops.core.contract.retraining.triggered import window_end, window_start
from airflow_hops.core.contract.web import URL_PREFIX
from airflow_hops.web.frames import OWN_BASE, PAGES, FrameGuard
from airflow_hops.web.pages import react_apps


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


class HopsPlugin(AirflowPlugin):
    """Registers what the web UI shows."""

    name = "hops"
    fastapi_apps = [{"name": "hops", "app": LazyApp(), "url_prefix": URL_PREFIX}]
    fastapi_root_middlewares = [
        {"name": "hops frames", "middleware": FrameGuard, "kwargs": {"paths": PAGES, "policy": OWN_BASE}}
    ]
    react_apps = react_apps()
    macros = [window_start, window_end]
    listeners = [preimports]
