"""The Airflow plugin: the place where pages and macros are registered."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class HopsPlugin(AirflowPlugin):
    """Registers what the web UI shows."""

    name = "hops"
