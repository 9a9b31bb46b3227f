"""Airflow plugin that registers pages, web API and macros."""

from __future__ import annotations

import gc
from functools import cached_property
from typing import Any

from airflow_hops import preimports
from airflow_hops.airflow_internals.plugin import AirflowPlugin
from airflow_hops.core.retraining.triggered import window_end, window_start
from airflow_hops.core.web import URL_PREFIX
from airflow_hops.web.frames import OWN_BASE, PAGES, FrameGuard
from airflow_hops.web.pages import react_apps


class LazyApp:
    """Creates the FastAPI application when the API server starts.

    Airflow loads plugins in every process, including tasks, and importing FastAPI takes longer than this package.
    """

    @cached_property
    def _app(self) -> Any:
        from airflow_hops.web.app import make_app

        return make_app()

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        """Handles one request (ASGI)."""
        await self._app(scope, receive, send)

    def load(self, server: object) -> Any:
        """Creates the application, and returns the API server's own unchanged.

        As a root middleware it runs once, when the API server starts, so that no request waits for the imports, or for
        the garbage collector, which takes half a second for their 800,000 objects each time.
        """
        assert self._app
        gc.collect()
        gc.freeze()
        return server


_api = LazyApp()


class HopsPlugin(AirflowPlugin):
    """Registers pages, web API, macros and listeners."""

    name = "hops"
    fastapi_apps = [{"name": "hops", "app": _api, "url_prefix": URL_PREFIX}]
    fastapi_root_middlewares = [
        {"name": "hops frames", "middleware": FrameGuard, "kwargs": {"paths": PAGES, "policy": OWN_BASE}},
        {"name": "hops start", "middleware": _api.load},
    ]
    react_apps = react_apps()
    macros = [window_start, window_end]
    listeners = [preimports]
