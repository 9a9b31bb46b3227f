"""Imports of the scheduler before a LocalExecutor forks its workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_SCHEDULER = """
import json, os, sys
import airflow.jobs.scheduler_job_runner
from airflow_hops import preimports

preimports.on_starting(component=None)
modules = set(sys.modules)
import airflow.sdk.execution_time.task_runner
import airflow_hops.operators
print(json.dumps(sorted(set(sys.modules) - modules)))
"""


def test_scheduler_preimports_all_task_modules(tmp_path: Path) -> None:
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, "-c", _SCHEDULER], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == []
