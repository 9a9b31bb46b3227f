"""Airflow's simple auth manager, with users who may read and change the DAGs that their names say, and no others."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

ONLY = "only:"
BARE = "bare"
TASKLESS = "taskless"
ANSWERING = "answering"
LOGLESS = "logless"


class DagAuthManager(SimpleAuthManager):
    """A user named ``only:a,b`` has his role's rights to the DAGs ``a`` and ``b``; ``bare`` to DAGs alone, not to what
    belongs to one; ``taskless`` to all but task instances; ``answering`` to all but starting runs;
    ``logless`` to all but task logs.
    """

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        dag_id = details.id if details is not None else None
        own = user.username.removeprefix(ONLY).split(",")
        if user.username.startswith(ONLY) and dag_id is not None and dag_id not in own:
            return False
        if user.username == BARE and access_entity is not None:
            return False
        if user.username == TASKLESS and access_entity == DagAccessEntity.TASK_INSTANCE:
            return False
        if user.username == LOGLESS and access_entity == DagAccessEntity.TASK_LOGS:
            return False
        if user.username == ANSWERING and method == "POST":
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
