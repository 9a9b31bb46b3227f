"""A training that outlives its worker, under a real Airflow: scheduler, task runner and task state store."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from otlp_receiver import OtlpReceiver, attributes
from real_airflow import RealAirflow
from waiting import is_gone
from waiting import wait_for as wait_seconds_for

from airflow_hops.core.processes.files import lock_holder
from airflow_hops.core.steps.jobs import Job
from airflow_hops.core.store import ArtifactStore

pytestmark = pytest.mark.runtime
DAG_ID, TASK_ID = "train_durable", "train"
wait_for = functools.partial(wait_seconds_for, timeout_s=300.0, poll_s=0.5)


@dataclass
class Training:
    """A DAG run: its task, its job, its ranks."""

    api: Any
    store: ArtifactStore
    folder: Path
    logs: Path
    run_id: str

    def allow(self, epochs: int) -> None:
        (self.folder / "new").write_text(str(epochs))
        (self.folder / "new").replace(self.folder / "allowed")

    @property
    def ranks(self) -> list[int]:
        """The processes that have begun to train, in all tries."""
        path = self.folder / "ranks"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    @property
    def instance(self) -> dict[str, Any]:
        (result,) = self.api.task_instances(DAG_ID, self.run_id)
        return dict(result)

    def jobs(self) -> list[Job]:
        root = Path(self.store.internal("_state", "jobs", DAG_ID, self.run_id, TASK_ID).removeprefix("file://"))
        jobs = [Job.read(folder) for folder in self.folder.with_name("tmp").glob("hops-job-*")]
        return [next(job for job in jobs if job and job.id == folder.name) for folder in root.glob("*")]

    def has_checkpoint(self) -> bool:
        root = Path(self.store.internal("_state", "checkpoints", DAG_ID, self.run_id).removeprefix("file://"))
        return any(root.rglob("checkpoint.json"))

    def log(self, try_number: int) -> str:
        path = self.logs / f"dag_id={DAG_ID}" / f"run_id={self.run_id}" / f"task_id={TASK_ID}"
        path /= f"attempt={try_number}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture(scope="module")
def start(real_airflow: RealAirflow, warm_launcher: Any) -> Callable[[str], Training]:
    """Starts DAG runs."""
    examples = real_airflow.runner.transformed_examples(warm_launcher)
    api, home = real_airflow.api, real_airflow.home
    api.wait_for_dag(DAG_ID)

    def start(name: str) -> Training:
        folder = home / name
        folder.mkdir()
        (folder / "allowed").write_text("2")
        run_id = api.trigger(DAG_ID, {"examples": examples.to_dict(), "folder": str(folder)})
        training = Training(api, real_airflow.runner.store, folder, home / "airflow" / "logs", run_id)
        wait_for(lambda: len(training.ranks) == 2 and "rank 0 has done epoch 2" in training.log(1))
        wait_for(training.has_checkpoint)
        return training

    return start


def test_retry_continues_the_training_of_a_killed_worker(start, real_airflow):
    training, began_ns = start("killed"), time.time_ns()
    ranks, (job,) = training.ranks, training.jobs()
    worker = lock_holder(job.path / "attached")
    step = lock_holder(job.path / "running")
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: training.instance["state"] in ("up_for_retry", "queued", "running") and is_gone(worker))
    training.allow(3)
    # Other threads of the worker may hold its lock for a moment after the first one has ended.
    wait_for(lambda: lock_holder(job.path / "attached") not in (None, worker))
    assert lock_holder(job.path / "running") == step
    training.allow(100)
    wait_for(lambda: training.instance["state"] in ("success", "failed"))
    assert training.instance["state"] == "success", training.log(2)
    assert training.instance["try_number"] == 2
    assert training.ranks == ranks, "one training began"
    value = training.api.xcom(DAG_ID, training.run_id, TASK_ID)
    manifest = training.store.manifest(value["uri"])
    assert manifest.fingerprint == value["fingerprint"]
    assert manifest.producer.try_number == 1
    second = training.log(2)
    assert "rank 0 has done epoch 2" not in second
    assert "rank 0 has done epoch 3" in second and "rank 0 has done epoch 5" in second
    assert "Try 1 left a job that continues" in second
    assert all(is_gone(pid) for pid in [step, *ranks])
    assert not job.path.exists() and not training.jobs()
    _check_spans(real_airflow.receiver, value["uri"], began_ns)


def _check_spans(receiver: OtlpReceiver, uri: str, trained_ns: int) -> None:
    """The ranks are children of the step's span, which is one of the task's; their times are those of the job."""
    step = wait_for(lambda: next((s for s in receiver.spans if attributes(s).get("hops.artifact") == uri), None))
    task = wait_for(lambda: next((s for s in receiver.spans if s.span_id == step.parent_span_id), None))
    assert (step.name, task.trace_id) == ("step.train", step.trace_id)
    work, *ranks = (s for s in receiver.spans if s.parent_span_id == step.span_id and s.name in ("work", "rank"))
    assert sorted(attributes(rank)["hops.rank"] for rank in ranks) == [0, 1]
    for rank in ranks:
        facts, took_s = attributes(rank), (rank.end_time_unix_nano - rank.start_time_unix_nano) / 1e9
        parts = [facts[f"hops.seconds.{name}"] for name in ("computing", "rows", "exchange")]
        assert min(parts) >= 0 and 0 < sum(parts) < took_s
        assert work.start_time_unix_nano < rank.start_time_unix_nano < trained_ns, "the first try began to train"
        assert trained_ns < rank.end_time_unix_nano < work.end_time_unix_nano < step.end_time_unix_nano
        assert facts["host.name"]
    assert sum(attributes(rank)["hops.rows.train"] for rank in ranks) == 300
