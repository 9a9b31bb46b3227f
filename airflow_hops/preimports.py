"""Has the processes of Airflow that fork one for each task or DAG file do once what each fork would do for itself.

A LocalExecutor's workers are forks of the scheduler, and their tasks forks of them; a DAG processor forks one for each
file. After an update of this package both must be restarted, as with any plugin.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Mapping
from typing import Any

from airflow.listeners import hookimpl

from airflow_hops.core.processes.scheduling import preempt_nobody

_SCHEDULER = "airflow.jobs.scheduler_job_runner"
_FORKING = frozenset({_SCHEDULER, "airflow.jobs.dag_processor_job_runner"})
_MODULES = ("airflow.sdk.execution_time.task_runner", "airflow_hops.operators", "airflow_hops.user_code.files")
_WORKERS_MODULES = ("airflow.sdk.execution_time.supervisor", "airflow.sdk.definitions.connection")


@hookimpl
def on_starting(component: Any) -> None:
    """Imports what a task's process would, before the first is forked; Airflow's other components import nothing."""
    if _FORKING & sys.modules.keys():
        for module in _MODULES:
            importlib.import_module(module)
    if _SCHEDULER in sys.modules:
        _share_with_workers()
        # A worker that the end of its task wakes up must not take the core from it: it would look for that end too
        # early, and then not for a while (``[workers] min_heartbeat_interval``).
        preempt_nobody()


def _share_with_workers() -> None:
    """Has each worker of a LocalExecutor share memory with the scheduler that it would take for itself."""
    for module in _WORKERS_MODULES:
        importlib.import_module(module)
    from airflow.sdk.api.client import Client

    # The first client of a process reads the authorities' certificates, which are kept for those that follow.
    Client(base_url="http://localhost", token="").close()
    from airflow_hops.user_code.fingerprints import package_fingerprint

    package_fingerprint()
    if _freeze_first not in gc.callbacks:
        gc.callbacks.append(_freeze_first)


def _freeze_first(phase: str, info: Mapping[str, int]) -> None:
    """Leaves out of a full collection what was there when workers were forked, which it would copy.

    The executor freezes it before the forks, and unfreezes it after them.
    """
    if phase == "start" and info["generation"] == 2 and not gc.get_freeze_count():
        gc.freeze()
