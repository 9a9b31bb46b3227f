"""The Airflow plugin: the place where pages, web API and macros are registered."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from airflow_hops import preimports
from airflow_hops.api.frames import OWN_BASE, PAGES, FrameGuard
from airflow_hops.api.lazy import LazyApp
from airflow_hops.api.pages import react_apps
from airflow_hops.contract.retraining import window_end, window_start
from airflow_hops.contract.web import URL_PREFIX


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
