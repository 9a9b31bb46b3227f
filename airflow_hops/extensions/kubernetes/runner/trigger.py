"""Trigger that follows the pod of a deferred task."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from asgiref.sync import sync_to_async

from airflow_hops.airflow_internals.triggers import BaseTrigger, TriggerEvent
from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.steps.protocol import parse_line
from airflow_hops.core.store.files import reaching_store
from airflow_hops.extensions.kubernetes.runner.failures import read_pod
from airflow_hops.extensions.kubernetes.runner.process import PodProcess
from airflow_hops.runner.progress import ProgressWriter
from airflow_hops.runner.runtime import RuntimeHook

_POLL_S = 5.0
_ATTACH_S = 300.0
"""Seconds within which a service has to answer for the first time; later, it is waited for as a worker does."""
_LAST_LINES = 20
_THREADS = ThreadPoolExecutor(16, "pods")
"""Threads for pods alone: while Kubernetes' API does not answer, other triggers still have those of the event loop."""

T = TypeVar("T")


class PodTrigger(BaseTrigger):
    """Follows a pod as a worker would, and fires when it has ended or will not start.

    It shows the output in the task's log, writes its progress, and beats for the pod, which otherwise ends after
    ``[hops] orphan_timeout``. All state is in the store, so another triggerer can take over. If it cannot follow the
    pod at all, it fires, and the worker follows the pod.

    Args:
        pod: Name, namespace, connection and record of the pod, and the launcher's options.
        deferral: Fields of the :class:`~airflow_hops.runner.launchers.process.Deferral`.
    """

    def __init__(self, *, pod: Mapping[str, Any], deferral: Mapping[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pod, self.deferral = dict(pod), dict(deferral)
        self._hook = RuntimeHook(self.deferral["conn_id"])
        self._process: PodProcess | None = None
        self._last: deque[str] = deque(maxlen=_LAST_LINES)

    def serialize(self) -> tuple[str, dict[str, object]]:
        """Returns the path of this class, and its arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"pod": self.pod, "deferral": self.deferral}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event, with what the worker has to know besides the pod itself."""
        event = {"name": self.pod["name"], "namespace": self.pod["namespace"], "node": None, "is_lost": False}
        event |= {"error": None, "last_lines": [], "problem": None}
        try:
            await self._follow()
        except Exception as error:  # also of the store's client
            event["problem"] = f"{type(error).__name__}: {error}"
        if self._process is not None:
            await self.cleanup()
            event |= self._process.event(self._last)
        yield TriggerEvent(event)

    async def cleanup(self) -> None:
        """Leaves the pod to the next follower: a worker, or another triggerer."""
        if self._process is not None:
            await _in_thread(self._process.leave)

    async def on_kill(self) -> None:
        """Deletes the pod, unless another try of the task follows it already."""
        process = self._process or await self._attach()
        await _in_thread(process.kill)
        await _in_thread(process.discard)

    async def _follow(self) -> None:
        until, attaches_by = self.deferral["until"], time.monotonic() + _ATTACH_S
        while until is None or time.time() < until:
            try:
                process = self._process or await self._attach()
                if await _in_thread(partial(process.look, self._show)):
                    return
            except HopsError as error:
                if not error.retryable or time.monotonic() > attaches_by:
                    raise
                self.log.warning("%s", error)
            wait_s = min(_POLL_S, self.pod["beat_s"])
            await asyncio.sleep(wait_s if until is None else max(min(wait_s, until - time.time()), 0))

    async def _attach(self) -> PodProcess:
        """Begins to follow the pod."""
        hook = self._hook
        store, api = await sync_to_async(lambda: (hook.store, KubernetesHook(self.pod["conn_id"]).core_v1_client))()
        if store.root != self.pod["store"]:
            raise BadInput(
                f"connection {self.deferral['conn_id']!r} names the store {store.root} where the triggerer runs, and "
                f"{self.pod['store']} where the worker runs; give both the same connections"
            )

        def attach() -> PodProcess:
            options = {name: self.pod[name] for name in ("beat_s", "startup_timeout_s", "lost_node_timeout_s")}
            pod = read_pod(api, self.pod["name"], self.pod["namespace"], None)
            with reaching_store(store.root):
                return PodProcess(api, pod, store, self.pod["record"], Path(), beats=False, **options)

        hook.progress = ProgressWriter(store, Producer(**self.deferral["producer"]))
        self._process = await _in_thread(attach)
        return self._process

    def _show(self, text: str) -> None:
        line = parse_line(text)
        self._last.append(line.text)
        self._hook.show(line)


async def _in_thread(function: Callable[[], T]) -> T:
    """Calls a function in a thread, whose log lines are those of this trigger."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_THREADS, lambda: context.run(function))
