"""Rests of a step when a disk is full or a try is killed in between; the steps themselves do nothing."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import is_gone

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import HopsError, StepFailed
from airflow_hops.core.processes.files import lock_for_process
from airflow_hops.core.steps.jobs import Job
from airflow_hops.core.steps.protocol import StepResult, StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner import resuming
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.launchers.process import StepProcess
from airflow_hops.runner.resuming import DurableLauncher, JobProcess, prepare, remove, remove_abandoned, state_of
from airflow_hops.runner.runtime import RuntimeHook

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return ArtifactStore((tmp_path / "store").as_uri())


@pytest.fixture
def job(store: ArtifactStore) -> Job:
    return prepare(spec_in(store), store)


def spec_in(store: ArtifactStore) -> StepSpec:
    return StepSpec(step="s", entry="m:f", params={}, store=store.root, producer=Producer("d", "r", "s", -1, 1))


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def end(job: Job) -> None:
    """Leaves the folder of a job that has succeeded."""
    (job.path / "running").write_text('{"pid": 0, "session": 0}')
    StepResult(value=1).write(job.path / "result.json")


def test_half_removed_job_is_no_job_that_has_not_begun(
    job: Job, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(folder: Path, **_: Any) -> None:
        for name in ("running", "result.json"):
            (Path(folder) / name).unlink()
        raise KeyboardInterrupt

    end(job)
    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", kill)
        with pytest.raises(KeyboardInterrupt):
            remove(job, store)
    assert state_of(job, store) == "ended"
    remove_abandoned(store)
    assert list(job.path.parent.iterdir()) == []


@pytest.mark.parametrize("waits", [False, True])
def test_job_that_disappears_before_a_try_follows_it_is_not_started_again(
    job: Job, store: ArtifactStore, tmp_path: Path, waits: bool
) -> None:
    process = JobProcess(job, store, tmp_path)
    assert job.is_here
    job.remove_folder()
    if waits:
        job.path.mkdir()
    with pytest.raises(HopsError, match=r"step 's': its job was removed .*; retry"):
        process.attach()
    process.discard()
    assert not job.path.exists()


def test_step_that_has_begun_ends_with_a_start_that_fails(store: ArtifactStore, tmp_path: Path) -> None:
    started: list[StepProcess] = []

    class Late(Launcher):
        def start(self, spec_path: Path, code_paths: Any, *, variables: Any = None) -> StepProcess:
            env = {"PATH": os.environ["PATH"], **variables}
            started.append(StepProcess.start(["sleep", "60"], env=env, cwd=spec_path.parent))
            raise HopsError("the task's time is over")

    tries: dict[str, Any] = {}
    durable = DurableLauncher(Late(tmp_path), type("Tries", (), {"get": tries.get, "set": tries.__setitem__})())
    (tmp_path / "spec.json").write_text(spec_in(store).to_json())
    with pytest.raises(HopsError, match="time is over"):
        durable.start(tmp_path / "spec.json", ())
    assert started[0].pid is not None and (started[0].poll() is not None or is_gone(started[0].pid))


def test_full_disk_loses_neither_a_job_nor_its_result(
    job: Job, store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(job)
    process = JobProcess(job, store, tmp_path)
    process.attach()
    with monkeypatch.context() as full:
        full.setattr(StepResult, "write", raising(FULL))
        full.setattr(os, "pwrite", raising(FULL))
        process.remember(7)
        with pytest.raises(HopsError, match=r"no space left on the device .*; free some space and retry"):
            process.wait(1)
        process.discard()
    assert state_of(job, store) == "succeeded"
    assert lock_for_process(job.path / "attached") is not None


def test_result_on_another_machine_is_kept_until_it_is_taken(
    job: Job, store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = job.lease(store)
    assert lease.try_take()
    lease.note = StepResult(value=1).to_dict()
    lease.release()
    elsewhere = replace(job, host="another")
    process = JobProcess(elsewhere, store, tmp_path)
    with monkeypatch.context() as silent:
        silent.setattr(resuming, "_record", raising(HopsError("no answer")))
        with pytest.raises(HopsError, match="no answer"):
            process.poll()
    process.discard()
    assert state_of(elsewhere, store) == "succeeded"
    assert process.wait(1) == 0
    process.discard()
    assert state_of(elsewhere, store) == "ended"


def test_error_quotes_what_descendants_print_after_a_step_ends(tmp_path: Path) -> None:
    child = "(trap 'echo the reason; exit' TERM; touch ready; while :; do :; done)"
    program = f"printf unfinished; {child} & while [ ! -e ready ]; do :; done; exit 3"
    process = StepProcess.start(["sh", "-c", program], env={"PATH": os.environ["PATH"]}, cwd=tmp_path)
    with pytest.raises(StepFailed, match=r"its last lines:\n  unfinished\n  the reason$"):
        RuntimeHook().watch("s", process, tmp_path)


def test_error_of_a_step_that_could_not_write_its_log_names_the_full_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", raising(FULL))
    process = StepProcess.start(["sh", "-c", "exit 3"], env={"PATH": os.environ["PATH"]}, cwd=tmp_path)
    with pytest.raises(
        StepFailed, match=f"code 3 without a result: no space left on the device that holds {tmp_path};"
    ):
        RuntimeHook().watch("s", process, tmp_path)
