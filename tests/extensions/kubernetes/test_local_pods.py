"""Steps as pods of an API that starts processes of this machine: which pod a try follows, and what comes back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

from airflow_hops.airflow_internals.tasks import AirflowTaskTimeout
from airflow_hops.core.errors import HopsError, StepFailed
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.kubernetes.runner.process import PodProcess
from airflow_hops.runner.runtime import RuntimeHook
from tests.extensions.kubernetes.kubernetes_pods import Background
from tests.extensions.kubernetes.local_pods import LocalPods
from tests.extensions.kubernetes.test_kubernetes_deferred import Triggerer, copy_of, fire, shown, task  # noqa: F401
from tests.extensions.kubernetes.test_kubernetes_launcher import STEPS, Runner, runner  # noqa: F401

pytestmark = pytest.mark.runtime


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalPods]:
    """The API, in place of a cluster's."""
    from airflow_hops.extensions.kubernetes.runner import trigger  # takes a second

    (tmp_path / "pods").mkdir()
    (tmp_path / "store").mkdir()
    pods = LocalPods(tmp_path / "pods")
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", '{"conn_type": "kubernetes"}')
    monkeypatch.setattr(trigger.KubernetesHook, "core_v1_client", pods)
    monkeypatch.setattr(trigger, "_POLL_S", 0.1)
    monkeypatch.setattr(trigger, "_ATTACH_S", 5.0)
    yield pods
    pods.end()


@pytest.fixture
def begin(runner: Runner) -> Callable[..., Background]:  # noqa: F811
    """Runs a step that waits for the file ``answer``, and returns once it waits."""

    def start(spec: Any, chosen: Runner = runner) -> Background:
        step = Background(lambda: chosen.run(spec))
        wait_for(lambda: "is anybody there?" in chosen.texts() or step.done(), lambda: str(chosen.texts()))
        return step

    return start


@pytest.mark.slow
def test_step_streams_and_leaves_nothing(pods: LocalPods, runner: Runner, tmp_path: Path) -> None:  # noqa: F811
    answer, spec = tmp_path / "answer", runner.spec("talk", dag_id="Größe", answer=str(tmp_path / "answer"))
    progress = list[float]()

    def hear(line: Any) -> None:
        if line.progress is not None:
            progress.append(line.progress)
            answer.touch()

    value = runner.run(spec, on_line=hear)
    assert (progress, value["word"], value["data"]) == ([0.5], "beside the DAG", "rows")
    (phase,) = runner.result.phases
    assert phase.name == "pod" and phase.attributes["k8s.node.name"] == "local"
    assert pods.pods == {} and not list((tmp_path / "store" / "_state").rglob("*.json"))
    with pytest.raises(StepFailed, match=r"ended by exit code 3 without a result; its last lines:(\n.*)*\n  dying"):
        runner.run(runner.spec("die"))


@pytest.mark.slow
def test_later_try_follows_the_pod_of_equal_code_alone(
    pods: LocalPods,
    runner: Runner,  # noqa: F811
    begin: Callable[..., Background],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pods of other tasks, entry functions and Airflows stay, but those whose results nobody came for."""
    answer, admitted = tmp_path / "answer", set[int]()
    monkeypatch.setattr(RuntimeHook, "admit", lambda self, spec: admitted.add(spec.producer.try_number))
    first = begin(runner.spec("talk", answer=str(answer)))
    (name,) = pods.pods
    other = Runner(str(tmp_path / "other"), runner.runtime)
    other.pods, other.code = pods, runner.code
    foreign = begin(runner.spec("talk", answer=str(answer)), other)
    left = next(iter(pods.pods[each] for each in pods.pods if each != name))
    runner.run(runner.spec("where"))
    assert name in pods.pods and left.metadata.name in pods.pods

    again = Runner(str(runner.store.root), runner.runtime)
    again.pods, again.code, again.lines = pods, runner.code, []
    second = Background(lambda: again.run(runner.spec("talk", answer=str(answer), try_number=2)))
    with pytest.raises(HopsError, match="a later try of this task follows it now"):
        first.result(60)
    (runner.code / "pod_steps.py").write_text(STEPS.read_text() + "\n# changed\n")
    third = Background(lambda: again.run(runner.spec("talk", answer=str(answer), try_number=3)))
    wait_for(lambda: name not in pods.pods or third.done(), "the end of the pod of other code")
    with pytest.raises(HopsError):
        second.result(60)
    answer.touch()
    assert foreign.result(60)["word"] == third.result(60)["word"] == "beside the DAG"
    assert admitted == {1, 3}, "what runs already is not refused"


def test_result_is_taken_again_after_a_kill_before_it_was_recorded(
    pods: LocalPods,
    runner: Runner,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(PodProcess, "discard", lambda self: None)
        runner.run(runner.spec("where"))
    (name,) = pods.pods
    runner.run(runner.spec("where", try_number=2))
    assert list(pods.processes) == [name] and pods.pods == {}


def test_no_beat_writes_the_folder_of_a_removed_pod_again(
    pods: LocalPods,
    runner: Runner,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def remove_slowly(self: ArtifactStore, uri: str) -> None:
        remove(self, uri)
        time.sleep(1.2)

    remove = ArtifactStore.remove_folder
    monkeypatch.setattr(ArtifactStore, "remove_folder", remove_slowly)
    monkeypatch.setenv("AIRFLOW__HOPS__ORPHAN_TIMEOUT", "2")  # a beat each half second
    runner.run(runner.spec("where"))
    assert pods.pods == {} and not [each for each in (tmp_path / "store/_state/pods").rglob("*") if each.is_file()]


def test_unfetched_results_expire(
    pods: LocalPods,
    runner: Runner,  # noqa: F811
    task: Any,  # noqa: F811
) -> None:
    ends = task("wait_long", seconds=0)
    trigger, left = ends.defer()
    event = asyncio.run(fire(trigger))
    (name,) = pods.pods
    runner.run(runner.spec("where"))
    assert name in pods.pods
    (status,) = pods.pods[name].status.container_statuses
    status.state.terminated.finished_at = datetime.now(UTC) - timedelta(days=1)
    runner.run(runner.spec("where"))
    assert name not in pods.pods
    assert ends.resume(left, event)  # its result is in the store


@pytest.mark.slow
def test_trigger_follows_and_a_worker_takes_the_result(
    pods: LocalPods,
    task: Any,  # noqa: F811
    shown: list[str],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = tmp_path / "answer"
    talk = task("talk", answer=str(answer))
    trigger, left = talk.defer()
    following = Triggerer(trigger)
    wait_for(lambda: "half" in shown, lambda: str(shown))
    following.stop()
    with monkeypatch.context() as patch:
        extra = json.dumps({"conn_type": "hops", "extra": {"store": str(tmp_path / "other")}})
        patch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", extra)
        event = asyncio.run(fire(copy_of(trigger)))
    assert "is away, or new" in event["problem"]
    answer.touch()
    event = Triggerer(copy_of(trigger)).thread.result(60)
    assert talk.resume(left, event)["word"] == "beside the DAG"
    assert shown.count("is anybody there?") == 1
    assert pods.pods == {}


def test_task_out_of_time_ends_its_pod(pods: LocalPods, task: Any) -> None:  # noqa: F811
    waits = task("wait_long")
    trigger, left = waits.defer(until=time.time() + 3600)
    trigger.deferral["until"] = 0.0
    event, left = asyncio.run(fire(trigger)), replace(left, until=0.0)
    with pytest.raises(AirflowTaskTimeout, match="step 'wait_long' was not over within the task's execution_timeout"):
        waits.resume(left, event)
    assert pods.pods == {}
    trigger, _ = waits.defer()
    asyncio.run(trigger.on_kill())
    assert pods.pods == {}
