"""A step's pod as a process: its output by line, its exit code, its result, and a kill that deletes it."""

# How worker and pod find out about each other's end, by a folder of the store:
# 1. The worker that follows the pod has its lease (airflow_hops.core.store.leases). A later one takes it at once, since
#    all have the pod's name; a follower that has lost it stops without deleting the pod.
# 2. It beats every ``beat_s`` seconds, and every half second while the pod starts, with the time of the last line that
#    it has shown as the note. The next follower reads the log from that time on.
# 3. The pod writes the result before its container ends. Without it, the error is the reason that Kubernetes gives.
# 4. A kill deletes a running pod. Once the outcome is recorded, pod and folder are removed, if this worker still
#    follows the pod; a kill of the worker before that leaves both to the next try, which takes the result again.
# 5. A deferred task leaves the pod to a trigger (trigger.py), which follows it by the same rules, but looks at it only
#    every few seconds. The worker of the resumed task is the next follower.
# A killed worker leaves all of it. The next try finds the pod by its labels and fingerprint; without one, the pod ends
# its step after ``orphan_timeout``, as it no longer sees a beat.

from __future__ import annotations

import contextlib
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pendulum
from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import KubernetesApiException
from airflow.providers.cncf.kubernetes.utils.pod_manager import PodManager, parse_log_line
from kubernetes import client
from kubernetes.client.rest import ApiException
from tenacity import stop_after_attempt
from urllib3.exceptions import HTTPError

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.ending import GRACE_S
from airflow_hops.core.processes.polling import Overdue
from airflow_hops.core.steps.protocol import StepResult, format_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import Lease, LeaseLost
from airflow_hops.extensions.kubernetes.runner.failures import (
    base_state,
    full_name,
    is_unreachable,
    not_started,
    why_it_cannot_start,
    why_it_ended,
    why_it_waits,
)
from airflow_hops.extensions.kubernetes.runner.in_pod import RESULT
from airflow_hops.extensions.kubernetes.runner.manifests import BASE, GANG, ranks_of
from airflow_hops.extensions.kubernetes.runner.more_ranks import MoreRanks
from airflow_hops.extensions.kubernetes.runner.phases import pod_phase
from airflow_hops.runner.launchers.process import LOG, StepProcess

log = logging.getLogger(__name__)

_read_pod_logs = PodManager.read_pod_logs.retry_with(stop=stop_after_attempt(1))
# :meth:`.StepProcess.lines` repeats it, and reads the pod's state in between.
_STARTING_BEAT_S = 0.5
"""Seconds between two beats from the start of the pod to its first line: the step waits for one of them."""
_SILENT_S = 30
_FOREVER_S = 10**9
_LAST_LINES = 10
_GONE_S = 10.0
_LATE_S = 5.0
"""Seconds by which a line of the log may arrive late."""


class PodProcess(StepProcess):
    """A pod that this process follows; a later follower takes it over.

    Args:
        api: The API.
        pod: The pod, which exists.
        store: The artifact store.
        record: Address of the pod's folder in the store.
        folder: Folder for the step's result.
        beat_s: Seconds between two beats.
        startup_timeout_s: Seconds after which a pending pod is given up.
        lost_node_timeout_s: Seconds after which a pod on an unresponsive node counts as lost.
        event: Payload of the trigger that has followed the pod; None if there was none.
        beats: Whether a thread beats; otherwise :meth:`look` does.
    """

    poll_s = 0.2

    def __init__(
        self,
        api: client.CoreV1Api,
        pod: client.V1Pod,
        store: ArtifactStore,
        record: str,
        folder: Path,
        *,
        beat_s: float,
        startup_timeout_s: float,
        lost_node_timeout_s: float,
        event: Mapping[str, Any] | None = None,
        beats: bool = True,
    ) -> None:
        super().__init__(pod.metadata.name, None, folder / LOG, self._exit_code)
        self._api, self._manager = api, PodManager(api)
        self._pod, self._store, self._record, self._folder = pod, store, record, folder
        self._startup_timeout_s = startup_timeout_s
        self._starts_by, self._reported = time.monotonic() + startup_timeout_s, ""
        self._lost_node_timeout_s, self._reached_at = lost_node_timeout_s, time.monotonic()
        self._is_gone = self._killed = self._collected = False
        self._error: HopsError | None = None
        if event is not None:
            self._is_gone, self.last_lines = event["is_lost"], event["last_lines"]
            if (error := event["error"]) is not None:
                self._error = (HopsError if error["retryable"] else BadInput)(error["text"])
        self._code: int | None = None
        # While one thread reads lines, another may kill; a signal's handler may kill within the same thread.
        self._reading = threading.RLock()
        self._gone_at = math.inf
        self._shown: pendulum.DateTime | None = None
        self._shown_at: float | None = None
        self._over = threading.Event()
        self._beat_s, self._lease = beat_s, Lease(store, record, pod.metadata.name)
        self._beaten_at = time.monotonic()
        self._more_ranks = MoreRanks(api, store, record)
        self._lease.take()
        if self._lease.note:  # the last line that an earlier follower has shown
            self._shown = pendulum.parse(self._lease.note)  # type: ignore[assignment]
        if beats:
            threading.Thread(target=self._keep_beating, name=f"follows {pod.metadata.name}", daemon=True).start()

    def read_lines(self, *, is_over: bool, follow: bool = True) -> Iterator[str]:
        """Yields the pod's output since the last line that was shown, also by an earlier follower.

        Args:
            is_over: Whether the pod has ended.
            follow: Whether to wait for more lines.

        Raises:
            BadInput: the pod will never start.
            HopsError: it has not started in time.
        """
        if self._error is not None:
            raise self._error
        try:
            if not is_over and self._pod.status.phase == "Pending":
                yield from self._why_pending()
            else:
                yield from self._read_log(follow=follow)
        except (ApiException, HTTPError, KubernetesApiException) as error:
            log.debug("%s: its log was interrupted (%s)", full_name(self._pod), error)

    def check_follower(self) -> None:
        """Raises HopsError if another process follows the pod."""
        if self._pod.status.phase != "Pending" and not self._over.is_set() and not self._is_follower():
            raise HopsError(f"{full_name(self._pod)}: a later try of this task follows it now")

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for the end, takes the result from the store, and returns the exit code.

        Raises:
            Overdue: the pod has not ended in time.
            HopsError: it ended without a result, for a known reason.
        """
        code = super().wait(timeout_s)
        self._collect()
        return code

    def kill(self, grace_s: float = GRACE_S) -> None:
        """Deletes a pod that runs, with all that belongs to it, unless another process follows it.

        The step gets SIGTERM, and SIGKILL after the pod's own ``terminationGracePeriodSeconds``.
        """
        if not self._over.is_set() and self.poll() is None and self._is_follower():
            self._killed = True
            self._delete()
            with contextlib.suppress(Overdue):
                super().wait((self._pod.spec.termination_grace_period_seconds or 0) + _GONE_S)

    def discard(self) -> None:
        """Deletes the pod and its folder in the store, unless another process follows it."""
        if not self._over.is_set():
            self._over.set()  # a beat after the removal would write the folder again
            if self._is_gone or self._is_follower():
                self._delete()
                with contextlib.suppress(Exception):  # cleanup must not hide the step's outcome
                    self._store.remove_folder(self._record)

    def _delete(self) -> None:
        with contextlib.suppress(ApiException, HTTPError):
            self._manager.delete_pod(self._pod)

    @property
    def place(self) -> dict[str, str]:
        """Returns the names by which another process finds the pod."""
        metadata = self._pod.metadata
        addresses = {"store": self._store.root, "record": self._record}
        return {"name": metadata.name, "namespace": metadata.namespace, **addresses}

    def look(self, show: Callable[[str], None]) -> bool:
        """Shows the output since the last look and beats, for a follower without threads; returns whether it is over.

        It is over if the pod has ended, or will not start. If another process follows the pod now, it never is.
        """
        with self._reading:
            if self._over.is_set():
                return False
            has_ended = self.poll() is not None
            try:
                for line in self.read_lines(is_over=has_ended, follow=False):
                    show(line)
            except HopsError as error:
                self._error = error
            try:
                self._beat_if_due()
            except LeaseLost:
                self._over.set()
            except Exception as error:  # the next beat may succeed
                log.debug("%s: the beat cannot be written (%s)", full_name(self._pod), error)
            return has_ended or self._error is not None

    def leave(self) -> None:
        """Stops following the pod, which goes on; the next follower continues after the last line that was shown."""
        with self._reading:
            if not self._over.is_set():
                self._over.set()
                with contextlib.suppress(Exception):  # the next follower then repeats the lines since the last beat
                    self._beat()

    def event(self, last_lines: Sequence[str]) -> dict[str, Any]:
        """Returns the next follower's facts besides the pod itself: the payload of the trigger's event.

        Args:
            last_lines: The last lines that were shown.
        """
        error = self._error and {"text": str(self._error), "retryable": self._error.retryable}
        is_lost = self._is_gone and is_unreachable(self._pod)  # whether a pod was deleted, the next follower sees
        return {"node": self._pod.spec.node_name, "is_lost": is_lost, "error": error, "last_lines": list(last_lines)}

    def _why_pending(self) -> Iterator[str]:
        """Yields a line if a pending pod waits for another reason than at the last call.

        Raises:
            BadInput: the pod will never start.
            HopsError: it has not started in time.
        """
        if (error := why_it_cannot_start(self._pod)) is not None:
            raise error
        reason = why_it_waits(self._pod, self._events())
        kind = reason.partition(":")[0]
        if kind not in (self._reported, "ContainerCreating"):
            self._reported = kind
            yield format_record(f"{full_name(self._pod)} waits: {reason}")
        if self._pod.spec.scheduling_gates:  # a queue, such as Kueue's, decides when it starts
            self._starts_by = time.monotonic() + self._startup_timeout_s
        if time.monotonic() > self._starts_by:
            raise not_started(self._pod, reason, self._startup_timeout_s)

    def _read_log(self, *, follow: bool = True) -> Iterator[str]:
        since, skips = self._shown, self._shown is not None
        since_s = None
        if since is not None and self._shown_at is not None:
            # The node's clock may be ahead of this machine's.
            since_s = max((pendulum.now() - since).total_seconds(), time.monotonic() - self._shown_at + _LATE_S)
        lines = _read_pod_logs(
            self._manager,
            self._pod,
            BASE,
            timestamps=True,
            follow=follow,
            since_seconds=None if since_s is None else math.ceil(since_s) + 1,
            post_termination_timeout=_FOREVER_S,
            _request_timeout=(10, _SILENT_S),  # after a silence, the pod's state is read again
        )
        for raw in lines:
            stamp, text = parse_log_line(raw.decode(errors="replace").rstrip("\n"))
            if stamp is None:  # an error of the node; lines of the container have a time
                log.debug("%s: %s", full_name(self._pod), text)
                continue
            skips = skips and since is not None and stamp <= since
            if not skips:
                self._shown, self._shown_at = stamp, time.monotonic()
                yield text

    def _exit_code(self) -> int | None:
        with self._reading:
            if self._code is None:
                self._read()
                state = base_state(self._pod)
                if state is not None and state.terminated is not None:
                    self._code = int(state.terminated.exit_code)
                elif self._is_gone:
                    self._code = -signal.SIGTERM
                elif self._pod.status.phase in ("Failed", "Succeeded"):
                    self._code = -signal.SIGKILL
            return self._code

    def _read(self) -> None:
        """Reads the pod; if the API does not answer, the pod stays as it was."""
        try:
            self._pod = self._manager.read_pod(self._pod)
        except ApiException as error:
            if error.status != 404:
                log.warning("%s cannot be read: %s %s", full_name(self._pod), error.status, error.reason)
            self._is_gone = error.status == 404
        except (HTTPError, KubernetesApiException) as error:
            log.warning("%s cannot be read: %s", full_name(self._pod), error)
        if not is_unreachable(self._pod):
            self._reached_at = time.monotonic()
        elif time.monotonic() - self._reached_at > self._lost_node_timeout_s:
            self._is_gone = True
        # If its node is lost, a deleted pod stays for ever.
        metadata, now = self._pod.metadata, time.monotonic()
        if metadata.deletion_timestamp is not None:
            self._gone_at = min(self._gone_at, now + (metadata.deletion_grace_period_seconds or 0) + _GONE_S)
        if now > self._gone_at:
            self._is_gone = True

    def _collect(self) -> None:
        """Writes the result to the step's folder, or raises the reason why there is none."""
        if self._collected:
            return
        self._collected = True
        try:
            result = StepResult.from_dict(self._store.read_json(f"{self._record}/{RESULT}"))
        except FileNotFoundError:
            if self._killed:
                return
            is_gone = self._was_deleted()
            error = why_it_ended(self._pod, self._node(), is_gone=is_gone, last_lines=self._last_lines)
            if error is not None:
                raise error from None
            return
        ranks = self._ranks() if GANG in (self._pod.metadata.labels or {}) else []
        self.phases = [phase for pod in (self._pod, *ranks) if (phase := pod_phase(pod)) is not None]
        if result.error is not None:
            reasons = [why_it_ended(rank, None, is_gone=_is_deleted(rank)) for rank in ranks]
            result = replace(result, error="\n".join([result.error, *map(str, filter(None, reasons))]))
        result.write(self._folder / "result.json")

    def _last_lines(self, container: str) -> str:
        """Returns the last lines of a container's log; empty if they cannot be read."""
        with contextlib.suppress(ApiException, HTTPError):
            metadata = self._pod.metadata
            answer = self._api.read_namespaced_pod_log(
                metadata.name,
                metadata.namespace,
                container=container,
                tail_lines=_LAST_LINES,
                _preload_content=False,  # else the client returns the repr of bytes
            )
            return "\n".join(f"  {line}" for line in answer.data.decode(errors="replace").splitlines())
        return ""

    def _was_deleted(self) -> bool:
        return self._is_gone or _is_deleted(self._pod)

    def _ranks(self) -> list[client.V1Pod]:
        with contextlib.suppress(ApiException, HTTPError):
            namespace = self._pod.metadata.namespace
            return list(self._api.list_namespaced_pod(namespace, label_selector=ranks_of(self.step_id)).items)
        return []

    def _node(self) -> client.V1Node | None:
        with contextlib.suppress(
            ApiException, HTTPError, ValueError
        ):  # reading nodes is a right that users may not have
            return self._api.read_node(self._pod.spec.node_name)
        return None

    def _events(self) -> list[object]:
        with contextlib.suppress(ApiException, HTTPError, KubernetesApiException):
            return list(self._manager.read_pod_events(self._pod).items)
        return []

    def _is_follower(self) -> bool:
        try:
            self._lease.check()
        except LeaseLost:
            return False
        except Exception as error:  # raised by the store's client
            log.debug("%s: its lease cannot be read (%s)", full_name(self._pod), error)
        return True

    def _keep_beating(self) -> None:
        while not self._over.wait(_STARTING_BEAT_S):
            with contextlib.suppress(Exception):  # the next beat may succeed
                self._beat_if_due()

    def _beat_if_due(self) -> None:
        is_starting = self._shown is None and self._pod.status.phase == "Running"
        if is_starting or time.monotonic() - self._beaten_at > self._beat_s - _STARTING_BEAT_S:
            self._beat()
        self._more_ranks.look(self._pod)

    def _beat(self) -> None:
        self._beaten_at = time.monotonic()
        self._lease.note = self._shown and self._shown.isoformat()
        self._lease.beat()


def _is_deleted(pod: client.V1Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None
