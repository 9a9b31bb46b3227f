"""Airflow's simple auth manager, with a user ``watcher`` who may read the DAG ``flights_monitoring`` and no other."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

USER, DAG = "watcher", "flights_monitoring"


class OneDagAuthManager(SimpleAuthManager):
    """Rights to one DAG for one user; all others have what their roles give them."""

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        if user.username == USER and details is not None and details.id not in (None, DAG):
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
