"""Jobs: a step outlives its worker, and the retry goes on with it; real processes throughout."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from job_worker import work
from waiting import is_gone, wait_for

from airflow_hops.core.processes.programs import module_command, with_package
from airflow_hops.core.steps.jobs import Job
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner.launchers.process import kill_step
from airflow_hops.runner.resuming import remove_abandoned

pytestmark = [pytest.mark.runtime, pytest.mark.server]
TESTS = Path(__file__).parent
STEPS = str(TESTS / "steps")


class Worker:
    """A process that follows a job as the operator does, and what it has said."""

    def __init__(self, given: dict[str, Any], environment: dict[str, str]) -> None:
        read_end, write_end = os.pipe()
        # A fork has Airflow imported already.
        self.process = get_context("fork").Process(target=work, args=(given, environment, write_end), daemon=True)
        self.process.start()
        os.close(write_end)
        self.said: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, args=(read_end,), daemon=True)
        self._reader.start()

    def _read(self, read_end: int) -> None:
        with os.fdopen(read_end) as stream:
            for text in stream:
                with contextlib.suppress(ValueError):  # cut off by a kill
                    self.said.append(json.loads(text))

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self) -> Worker:
        self.process.join()
        self._reader.join()
        return self

    def every(self, kind: str) -> list[Any]:
        return [message[kind] for message in list(self.said) if kind in message]

    @property
    def lines(self) -> list[str]:
        return self.every("line")

    @property
    def counted(self) -> list[int]:
        return [int(line.split()[1]) for line in self.lines if line.startswith("count ")]

    @property
    def job(self) -> Job:
        (job,) = self.every("job")
        result = Job.from_dict(job)
        assert result is not None
        return result


@pytest.fixture
def tries(tmp_path: Path, runtime: Path, warm_launcher: Any) -> Iterator[Callable[..., Worker]]:
    """Starts a try of one task: ``tries(job=…)`` is a retry that knows the job."""
    workers: list[Worker] = []
    ArtifactStore((tmp_path / "store").as_uri()).make()

    def start(
        job: Job | None = None,
        entry: str = "count",
        host: str | None = None,
        beat_s: float = 5.0,
        is_warm: bool = True,
        spark_conn_id: str | None = None,
        only_submit: bool = False,
        orphan_timeout: int = 60,
        **params: Any,
    ) -> Worker:
        values = {
            "store": (tmp_path / "store").as_uri(),
            "runtime": str(runtime),
            "code_paths": [STEPS],
            "entry": f"job_steps:{entry}",
            "params": {"folder": str(tmp_path), **params},
            "try_number": len(workers) + 1,
            "job": job.to_dict() if job else None,
            "warm": str(warm_launcher.warm.path) if is_warm else None,
            "spark_conn_id": spark_conn_id,
            "beat_s": beat_s,
            "only_submit": only_submit,
        }
        environment = {"AIRFLOW__HOPS__ORPHAN_TIMEOUT": str(orphan_timeout)}
        workers.append(Worker(values, environment | ({"HOPS_HOST": host} if host else {})))
        return workers[-1]

    yield start
    for worker in workers:
        worker.process.kill()
        for job in worker.every("job"):
            kill_step(job["id"], None)
            shutil.rmtree(job["folder"], ignore_errors=True)


def begun(tmp_path: Path) -> list[int]:
    """The processes that began to do the step's work."""
    path = tmp_path / "begun"
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def killed_worker(tries, tmp_path, **params) -> tuple[Job, list[int]]:
    """The job of a worker that was killed while the step counted, and the step's processes."""
    first = tries(**params)
    wait_for(lambda: first.counted)
    first.kill()
    return first.job, [*begun(tmp_path), int((tmp_path / "child").read_text())]


def nothing_is_left(job: Job, tmp_path: Path) -> bool:
    return not job.path.exists() and not list((tmp_path / "store").rglob(f"{job.id}*"))


@pytest.mark.parametrize(
    "values", [{"is_warm": False}, {}, {"spark_conn_id": "spark_local"}], ids=["cold", "warm", "spark"]
)
def test_a_retry_follows_the_job_of_a_worker_that_was_killed(tries, tmp_path, values):
    first = tries(**values)
    wait_for(lambda: len(first.counted) > 3)
    first.kill()
    (pid,) = begun(tmp_path)
    shown, job = first.counted, first.job
    at_kill = int((tmp_path / "count").read_text())
    wait_for(lambda: int((tmp_path / "count").read_text()) > at_kill + 12)
    second = tries(job, **values)
    wait_for(lambda: second.counted and second.counted[-1] > at_kill + 15)
    (tmp_path / "stop").touch()
    second.wait()
    assert second.every("follows") == [True]
    assert (first.every("admitted"), second.every("admitted")) == (["counting"], []), "what runs already is not refused"
    (result,) = second.every("result")
    assert (result["pid"], result["try"]) == (pid, 1)
    assert begun(tmp_path) == [pid], "it was begun once"
    # The log goes on where it stopped: nothing is lost, and at most the last chunk comes again.
    assert sorted({*shown, *second.counted}) == list(range(result["number"]))
    assert second.counted[0] in (shown[-1], shown[-1] + 1)
    assert [metrics["number"] for metrics in second.every("metrics") if metrics] == second.counted
    assert any("no worker follows this step any longer" in line for line in second.lines)
    assert is_gone(pid) and is_gone(int((tmp_path / "child").read_text()))
    assert nothing_is_left(job, tmp_path)


@pytest.mark.parametrize(
    ("end", "host", "follows"),
    [
        ("finished", None, True),
        ("finished", "another", True),
        ("failed", None, False),
        ("killed", None, False),
        ("of other parameters", None, False),
    ],
)
def test_retry_takes_a_result_and_replaces_any_other_end(tries, tmp_path, end, host, follows):
    job, (pid, child) = killed_worker(tries, tmp_path, host=host and "one", fail=end == "failed")
    params = {"fail": end == "failed", **({"until": 2} if end == "of other parameters" else {})}
    if end == "killed":
        os.kill(pid, signal.SIGKILL)
    if end in ("finished", "failed"):
        (tmp_path / "stop").touch()
        wait_for(lambda: is_gone(child))  # which holds the lock of the job, too
    wait_for(lambda: end == "of other parameters" or is_gone(pid))
    if host:
        (job.path / "output.log").unlink()  # it is not on this machine
    second = tries(job, host=host, **params)
    if end == "killed":
        wait_for(lambda: second.counted)
        (tmp_path / "stop").touch()
    second.wait()
    assert second.every("follows") == [follows]
    assert is_gone(pid)
    assert end != "of other parameters" or is_gone(child), "who ends a job ends its children"
    if follows:
        assert second.every("result")[0]["pid"] == pid and begun(tmp_path) == [pid]
    else:
        assert second.job.id != job.id and len(begun(tmp_path)) == 2
        assert nothing_is_left(second.job, tmp_path)
    if end == "failed":
        assert "counted in vain" in second.every("error")[0]
    elif not follows:
        assert second.every("result")[0]["try"] == 2
    assert host or nothing_is_left(job, tmp_path)


def test_job_of_a_worker_killed_before_start_is_started_once(tries, tmp_path, runtime):
    first = tries(only_submit=True).wait()
    assert begun(tmp_path) == []
    second = tries(first.job)
    wait_for(lambda: second.counted)
    # The worker that was thought dead starts it, too.
    late = module_command(runtime / "bin" / "python", "airflow_hops.ml", first.job.path / "spec.json")
    assert subprocess.run(late, env=with_package(os.environ), cwd=first.job.path).returncode == 0
    (tmp_path / "stop").touch()
    second.wait()
    assert second.every("follows") == [True]
    assert second.every("result")[0]["pid"] == begun(tmp_path)[0]
    assert len(begun(tmp_path)) == 1


def test_killing_a_reattached_worker_ends_all_of_the_job(tries, tmp_path):
    job, pids = killed_worker(tries, tmp_path)
    second = tries(job)
    wait_for(lambda: second.counted)
    second.process.terminate()
    wait_for(lambda: all(is_gone(pid) for pid in pids))
    second.wait()
    assert second.every("follows") == [True]
    assert "ended by SIGKILL" in second.every("error")[0]
    assert nothing_is_left(job, tmp_path)


def test_next_job_removes_what_a_killed_task_has_left(tries, tmp_path):
    job, pids = killed_worker(tries, tmp_path)
    remove_abandoned(ArtifactStore((tmp_path / "store").as_uri()))
    assert job.path.exists(), "its step still runs"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: all(is_gone(pid) for pid in pids))
    remove_abandoned(ArtifactStore((tmp_path / "other").as_uri()))
    assert job.path.exists(), "its record is in another store"
    old, new = (Path(tempfile.mkdtemp(prefix="hops-job-")) for _ in range(2))  # killed before the job was written
    os.utime(old, (0, 0))
    tries(until=1).wait()
    assert nothing_is_left(job, tmp_path) and not old.exists() and new.exists()
    new.rmdir()


def test_orphaned_job_ends_by_itself(tries, tmp_path):
    job, pids = killed_worker(tries, tmp_path, orphan_timeout=4)
    at_kill = int((tmp_path / "count").read_text())
    wait_for(lambda: int((tmp_path / "count").read_text()) > at_kill + 3)
    wait_for(lambda: all(is_gone(pid) for pid in pids))
    assert nothing_is_left(job, tmp_path)
    second = tries(job, until=1).wait()
    assert second.every("follows") == [False]


def test_worker_presumed_dead_releases_the_job(tries, tmp_path):
    first = tries()
    wait_for(lambda: first.counted)
    second = tries(first.job)
    first.wait()
    assert "a later try of this task follows its job now" in first.every("error")[0]
    wait_for(lambda: second.counted)
    (tmp_path / "stop").touch()
    assert second.wait().every("result")[0]["pid"] == begun(tmp_path)[0]
    assert len(begun(tmp_path)) == 1


def test_tail_of_long_unseen_output_is_shown(tries, tmp_path):
    first = tries(entry="chatter")
    wait_for(lambda: "before" in first.lines)
    first.kill()
    (tmp_path / "go").touch()
    wait_for((tmp_path / "gone").exists)
    second = tries(first.job, entry="chatter")
    wait_for(lambda: any(line.startswith("line 039999") for line in second.lines))
    (tmp_path / "stop").touch()
    second.wait()
    numbers = [int(line.split()[1]) for line in second.lines if line.startswith("line ")]
    assert numbers == list(range(numbers[0], 40_000))
    assert 10_000 < len(numbers) < 20_000
    assert second.every("result")


def test_retry_on_another_machine_ends_and_restarts_the_job(tries, tmp_path):
    job, pids = killed_worker(tries, tmp_path, host="one", beat_s=0.3)
    second = tries(job, host="another", until=3).wait()
    assert all(map(is_gone, pids))
    # That the second step began only when the first was gone is seen by the step itself.
    assert second.every("result")[0]["try"] == 2
    assert len(begun(tmp_path)) == 2
    assert not job.path.exists()
    assert nothing_is_left(second.job, tmp_path)
    (request,) = (tmp_path / "store").rglob(f"{job.id}/*")
    assert request.name == "2"


def test_silent_machine_counts_as_dead_and_its_job_ends_on_waking(tries, tmp_path):
    job, (pid, _) = killed_worker(tries, tmp_path, host="one", beat_s=0.3)
    os.kill(pid, signal.SIGSTOP)
    second = tries(job, host="another", until=3).wait()
    assert second.every("result")[0]["try"] == 2
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: is_gone(pid), timeout_s=10)
    assert not job.path.exists()


def test_job_without_heartbeat_ends_before_its_lease_expires(tries, tmp_path):
    first = tries(beat_s=0.3)
    wait_for(lambda: first.counted)
    jobs = tmp_path / "store" / "_state" / "jobs"
    jobs.rename(tmp_path / "away")
    jobs.touch()
    first.wait()
    assert "the store has not taken this job's record" in first.every("error")[0]
    assert is_gone(begun(tmp_path)[0])
    assert not first.job.path.exists()
