"""The Airflow plugin: the place where pages, web API and macros are registered."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from airflow_hops import preimports
from airflow_hops.core.contract.retraining.triggered import window_end, window_start
from airflow_hops.core.contract.web import URL_PREFIX
from airflow_hops.web.frames import OWN_BASE, PAGES, FrameGuard
from airflow_hops.web.lazy import LazyApp
from airflow_hops.web.pages import react_apps


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
