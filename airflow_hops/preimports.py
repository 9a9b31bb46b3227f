"""Imports modules for tasks and DAG files once, in the Airflow processes that fork for each of them.

After an update of this package, scheduler and DAG processor must be restarted, as with any plugin.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from airflow.listeners import hookimpl

_FORKING = frozenset({"airflow.jobs.scheduler_job_runner", "airflow.jobs.dag_processor_job_runner"})
_MODULES = (
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
    "airflow_hops.operators",
    "airflow_hops.user_code.files",
)


@hookimpl
def on_starting(component: Any) -> None:
    """Imports the modules in the scheduler and the DAG processor only."""
    if _FORKING & sys.modules.keys():
        for module in _MODULES:
            importlib.import_module(module)
