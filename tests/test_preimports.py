"""What the scheduler imports before a LocalExecutor forks its workers, and that it goes on sharing memory with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory as Linux tells it")

_SCHEDULER = """
import gc, json, os, sys
import airflow.jobs.scheduler_job_runner
from airflow.executors.local_executor import LocalExecutor
from airflow_hops import preimports


def private_mib():
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Private_Dirty"))


preimports.on_starting(component=None)
executor = LocalExecutor(parallelism=2)
executor.start()  # forks both workers
policies = [os.sched_getscheduler(pid) for pid in executor.workers]
before = private_mib()
gc.collect()
copied = private_mib() - before
executor.end()

read_end, write_end = os.pipe()
if (pid := os.fork()) == 0:
    modules = set(sys.modules)
    from airflow.sdk.execution_time import supervisor

    client = supervisor.Client(base_url="http://127.0.0.1:1/", token="")
    contexts = supervisor.Client._get_ssl_context_cached.cache_info().misses
    os.write(write_end, json.dumps({"imported": sorted(set(sys.modules) - modules), "contexts": contexts}).encode())
    os._exit(0)
os.waitpid(pid, 0)
print(json.dumps({"copied": copied, "policies": policies, **json.loads(os.read(read_end, 65536))}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a process tells that has imported, forked and collected garbage as a scheduler does."""
    home = tmp_path_factory.mktemp("airflow")
    done = subprocess.run(
        [sys.executable, "-c", _SCHEDULER],
        env={"AIRFLOW_HOME": str(home), "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR", "PATH": "/usr/bin"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_collecting_garbage_in_the_scheduler_copies_nothing_that_its_workers_share(told: Any) -> None:
    assert told["copied"] < 10, "MiB; all that it has imported are more than 50"


def test_a_worker_imports_nothing_and_reads_no_certificates_for_its_first_task(told: Any) -> None:
    assert told["imported"] == []
    assert told["contexts"] == 1, "that of the scheduler's own client"


def test_a_worker_takes_the_core_from_no_task_that_is_about_to_end(told: Any) -> None:
    assert told["policies"] == [os.SCHED_BATCH, os.SCHED_BATCH]
