"""Tasks that leave their pod to a trigger."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from waiting import wait_for

from airflow_hops.airflow_internals.triggers import BaseTrigger
from airflow_hops.core.errors import BadInput, HopsError, MachineLost
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.runner.runtime import LeftStep, RuntimeHook
from tests.extensions.kubernetes.kubernetes_pods import Background
from tests.extensions.kubernetes.test_kubernetes_launcher import Runner, override, runner  # noqa: F401

if TYPE_CHECKING:
    from airflow_hops.extensions.kubernetes.runner.trigger import PodTrigger

pytestmark = [pytest.mark.runtime, pytest.mark.scheduled(part="kubernetes")]


class Deferred(Exception):
    """The task has left its step."""

    def __init__(self, trigger: BaseTrigger, left: LeftStep) -> None:
        self.trigger, self.left = trigger, left


def leave(trigger: BaseTrigger, left: LeftStep) -> NoReturn:
    raise Deferred(trigger, left)


@dataclass
class Task:
    """A task that goes from a worker to the triggerer, and back to a worker."""

    runner: Runner
    spec: StepSpec
    options: dict[str, Any]

    def run(self, **waiting: Any) -> Any:
        """Runs the task on a worker; its connection is that of the test's store."""
        self.runner.lines = []
        return (
            RuntimeHook()
            .run(
                self.spec,
                launcher=self.runner.launcher(**self.options),
                cache=False,
                on_line=self.runner.lines.append,
                **waiting,
            )
            .value
        )

    def defer(self, until: float | None = None) -> tuple[PodTrigger, LeftStep]:
        """Runs the task until it leaves its step to a trigger; returns that as another process has it."""

        with pytest.raises(Deferred) as deferred:
            self.run(until=until, defer=leave)
        return copy_of(deferred.value.trigger), deferred.value.left

    def resume(self, left: LeftStep, event: Any) -> Any:
        return self.run(left=replace(left, event=json.loads(json.dumps(event))))


def copy_of(trigger: BaseTrigger) -> PodTrigger:
    from airflow_hops.extensions.kubernetes.runner.trigger import PodTrigger  # takes a second

    path, arguments = trigger.serialize()
    assert path == "airflow_hops.extensions.kubernetes.runner.trigger.PodTrigger"
    return PodTrigger(**json.loads(json.dumps(arguments)))


async def fire(trigger: PodTrigger) -> Any:
    return (await anext(trigger.run())).payload


class Triggerer:
    """Runs a trigger in a thread with an event loop, as the triggerer does, and may cancel it."""

    def __init__(self, trigger: PodTrigger) -> None:
        self.trigger, self.loop = trigger, asyncio.new_event_loop()
        self.task = self.loop.create_task(fire(trigger))
        self.thread = Background(self._run)

    def _run(self) -> Any:
        try:
            return self.loop.run_until_complete(self.task)
        except asyncio.CancelledError:
            self.loop.run_until_complete(self.trigger.cleanup())
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def stop(self, *, killed: bool = False) -> None:
        """Cancels the trigger: at the triggerer's end, or as a user has killed the task."""
        self.loop.call_soon_threadsafe(self.task.cancel)
        self.thread.result(60)
        if killed:
            asyncio.run(self.trigger.on_kill())


@pytest.fixture
def task(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    extra = {"store": runner.store.root, "runtime": str(runner.runtime)}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    return lambda function, options={}, **params: Task(runner, runner.spec(function, **params), options)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines that triggers have shown in the task's log, which they write to as before."""
    lines: list[str] = []
    show = RuntimeHook.show

    def note(hook: RuntimeHook, line: Any) -> None:
        lines.append(line.text)
        show(hook, line)

    monkeypatch.setattr(RuntimeHook, "show", note)
    return lines


def test_kill_deletes_pod_unless_a_later_try_follows_it(task: Any) -> None:
    waits = task("wait_long")
    trigger, _ = waits.defer()
    following = Triggerer(trigger)
    waits.runner.pods.wait_for("Running")
    wait_for(lambda: trigger._process is not None, "the trigger follows the pod")
    again = Task(waits.runner, replace(waits.spec, producer=replace(waits.spec.producer, try_number=2)), {})
    later, _ = again.defer()
    following.stop(killed=True)
    (pod,) = waits.runner.pods.list()
    assert "deletionTimestamp" not in pod["metadata"]
    Triggerer(later).stop(killed=True)
    waits.runner.pods.wait_until_gone()


pull_error: Any = override(container={"image": "docker.io/library/busybox:unknown", "imagePullPolicy": "Never"})
small: Any = override(container={"resources": {"limits": {"memory": "96Mi"}}})
large: Any = override(container={"resources": {"requests": {"memory": "4Ti"}}})


@pytest.mark.parametrize(
    ("function", "change", "kind", "why"),
    [
        ("eat_memory", small, HopsError, "was killed because it used more memory than 96Mi"),
        ("where", pull_error, BadInput, "the image docker.io/library/busybox:unknown cannot be pulled"),
        ("where", large, HopsError, r"has not started within 3 s \(Unschedulable: .*Insufficient memory"),
    ],
    ids=["memory", "image", "node"],
)
def test_errors_are_those_of_a_worker(task: Any, function: str, change: Any, kind: Any, why: str) -> None:
    failing = task(function)
    timeout_s = 3.0 if change is large else 600.0
    failing.options = {"pod_override": change(failing.runner.pods), "startup_timeout_s": timeout_s}
    trigger, left = failing.defer()
    event = Triggerer(trigger).thread.result(90)
    with pytest.raises(HopsError, match=why) as raised:
        failing.resume(left, event)
    assert type(raised.value) is kind and raised.value.retryable == (kind is not BadInput)
    failing.runner.pods.wait_until_gone()


def test_pod_that_is_gone(task: Any) -> None:
    """Without a result, the machine is lost, and no other pod is made; a result is in the store."""
    waits = task("wait_long")
    trigger, left = waits.defer()
    name = waits.runner.pods.wait_for("Running")["metadata"]["name"]
    delete = ("delete", "pod", "-n", waits.runner.pods.namespace, "--grace-period=0", "--force")
    waits.runner.pods.cluster.kubectl(*delete, name)
    with pytest.raises(MachineLost, match="was deleted, by a user, a drained node or a preemption"):
        waits.resume(left, Triggerer(trigger).thread.result(60))
    ends = task("wait_long", seconds=0)
    trigger, left = ends.defer()
    event = Triggerer(trigger).thread.result(60)
    waits.runner.pods.cluster.kubectl(*delete, event["name"])
    assert ends.resume(left, event) == event["name"]
