"""Names of Airflow's API server."""

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag

__all__ = ["DagAccessEntity", "DagDetails", "GetUserDep", "ResourceMethod", "get_auth_manager", "requires_access_dag"]
