"""Imports modules for tasks and DAG files once, in the Airflow processes that fork for each of them.

After an update of this package, scheduler and DAG processor must be restarted, as with any plugin.
"""

from __future__ import annotations

import importlib
import sys

from airflow_hops.airflow_internals.plugin import hookimpl
from airflow_hops.airflow_internals.tasks import FORKING_JOBS, TASK_PROCESS

_MODULES = (*TASK_PROCESS, "airflow_hops.operators", "airflow_hops.runner.user_code.files")


@hookimpl
def on_starting(component: object) -> None:
    """Imports the modules in the scheduler and the DAG processor only."""
    if FORKING_JOBS & sys.modules.keys():
        for module in _MODULES:
            importlib.import_module(module)
