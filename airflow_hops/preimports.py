"""Imports modules for tasks and DAG files once, in the Airflow processes that fork for each of them.

After an update of this package, scheduler and DAG processor must be restarted, as with any plugin.
"""

from __future__ import annotations

import functools
import importlib
import sys

from airflow_hops.airflow_internals.plugin import hookimpl
from airflow_hops.airflow_internals.tasks import FORKING_JOBS, TASK_PROCESS
from airflow_hops.core.extensions import SOURCES, extensions
from airflow_hops.runner.user_code.fingerprints import read_sources

_MODULES = (*TASK_PROCESS, "airflow_hops.operators", "airflow_hops.runner.user_code.files")


@hookimpl
def on_starting(component: object) -> None:
    """Imports the modules in the scheduler and the DAG processor only, and reads what each fork would read again."""
    if FORKING_JOBS & sys.modules.keys():
        _prepare()


@functools.cache
def _prepare() -> None:
    """Imports and reads once; Airflow calls the hook in the forks, too, which have it done."""
    for module in _MODULES:
        importlib.import_module(module)
    from airflow.sdk import Asset

    # Airflow 3.3: for the first address, it imports the kinds of assets of all providers, and with them boto3.
    Asset("hops://dag/task")
    extensions(SOURCES)
    read_sources()
