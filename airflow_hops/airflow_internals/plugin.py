"""Names that the plugin and its listeners use, which DAG files do without."""

from __future__ import annotations

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

__all__ = ["AirflowPlugin", "hookimpl"]
