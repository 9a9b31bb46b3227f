"""Names of Airflow's metadata database; tasks do not import them."""

from airflow import settings
from airflow.models.asset import AssetEvent
from airflow.models.dag import DagModel
from airflow.models.dag_version import DagVersion
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XCOM_RETURN_KEY, XComModel
from airflow.utils.session import create_session
from airflow.utils.state import State, TaskInstanceState

__all__ = [
    "XCOM_RETURN_KEY",
    "AssetEvent",
    "DagModel",
    "DagRun",
    "DagVersion",
    "HITLDetail",
    "SerializedDagModel",
    "State",
    "TaskInstance",
    "TaskInstanceState",
    "XComModel",
    "create_session",
    "settings",
]
