"""Names that DAG files and tasks use; cheap to import."""

from __future__ import annotations

from typing import Any

from airflow.configuration import conf
from airflow.sdk import DAG, get_current_context
from airflow.sdk._shared.secrets_backend.base import call_secrets_backend_method
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory
from airflow.sdk.bases.operator import BaseOperatorMeta
from airflow.sdk.definitions._internal.contextmanager import DagContext
from airflow.sdk.definitions._internal.mixins import ResolveMixin
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskAwaitingInput,
)
from airflow.sdk.execution_time.hitl import HITLUser, upsert_hitl_detail
from airflow.sdk.log import mask_secret, redact  # type: ignore[attr-defined]
from airflow.sdk.observability.stats import gauge, normalize_name_for_stats
from airflow.sdk.types import RuntimeTaskInstanceProtocol, TaskInstanceKey

__all__ = [
    "FORKING_JOBS",
    "KNOWN_CONTEXT_KEYS",
    "TASK_PROCESS",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "BaseOperatorMeta",
    "DecoratedOperator",
    "HITLUser",
    "ParamsDict",
    "ResolveMixin",
    "RuntimeTaskInstanceProtocol",
    "TaskAwaitingInput",
    "TaskDecorator",
    "TaskInstanceKey",
    "asset_exists",
    "call_secrets_backend_method",
    "conf",
    "current_dag",
    "dag_bundle",
    "gauge",
    "loop_iteration",
    "mask_secret",
    "normalize_name_for_stats",
    "redact",
    "secrets_backends",
    "task_decorator_factory",
    "upsert_hitl_detail",
]

FORKING_JOBS = frozenset({"airflow.jobs.scheduler_job_runner", "airflow.jobs.dag_processor_job_runner"})
"""Modules of the processes that fork others."""

TASK_PROCESS = ("airflow.sdk.execution_time.supervisor", "airflow.sdk.execution_time.task_runner")
"""Modules that each task's process imports."""

_ENVIRONMENT = "airflow.secrets.environment_variables.EnvironmentVariablesBackend"


def secrets_backends(*, in_command: bool) -> list[Any]:
    """Returns the backends for connections and variables, in the order that a task's worker queries them.

    Args:
        in_command: whether this is a command of ``airflow``, which lacks the worker's first backend.
    """
    from airflow.sdk.configuration import ensure_secrets_loaded
    from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

    first = ensure_secrets_loaded([_ENVIRONMENT]) if in_command else []
    return [*first, *ensure_secrets_backend_loaded()]


def loop_iteration(context: Any) -> int:
    """Returns the iteration of the loop that the task is in, from 0; -1 outside a loop, and before Airflow 3.4."""
    loop = context.get("loop")
    return -1 if loop is None else int(loop.index)


def dag_bundle() -> tuple[str | None, str | None]:
    """Returns name and version of the bundle that has the running task's DAG file; None for each unknown one."""
    try:
        bundle = getattr(get_current_context()["ti"], "bundle_instance", None)
    except RuntimeError:  # outside of a task
        return None, None
    return getattr(bundle, "name", None), getattr(bundle, "version", None)


def current_dag() -> DAG | None:
    """Returns the DAG whose ``with`` block the DAG file is in."""
    return DagContext.get_current()


def asset_exists(uri: str) -> bool:
    """Returns whether a DAG has the asset as an inlet, outlet or schedule; for a running task."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, GetAssetByUri

    return not isinstance(task_runner.SUPERVISOR_COMMS.send(GetAssetByUri(uri=uri)), ErrorResponse)
