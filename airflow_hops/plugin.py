"""The Airflow plugin: the place where pages, web API and macros are registered."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from airflow_hops.api import URL_PREFIX
from airflow_hops.api.lazy import LazyApp
from airflow_hops.api.pages import react_apps


class HopsPlugin(AirflowPlugin):
    """Registers what the web UI shows."""

    name = "hops"
    fastapi_apps = [{"name": "hops", "app": LazyApp(), "url_prefix": URL_PREFIX}]
    react_apps = react_apps()
