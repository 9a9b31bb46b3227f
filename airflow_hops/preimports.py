"""Has the processes of Airflow that fork one for each task or DAG file import the operators once for all forks.

A LocalExecutor's workers are forks of the scheduler, and their tasks forks of them; a DAG processor forks one for each
file. After an update of this package both must be restarted, as with any plugin.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from airflow.listeners import hookimpl

_FORKING = frozenset({"airflow.jobs.scheduler_job_runner", "airflow.jobs.dag_processor_job_runner"})
_MODULES = ("airflow.sdk.execution_time.task_runner", "airflow_hops.operators")


@hookimpl
def on_starting(component: Any) -> None:
    """Imports what a task's process would, before the first is forked; Airflow's other components import nothing."""
    if _FORKING & sys.modules.keys():
        for module in _MODULES:
            importlib.import_module(module)
