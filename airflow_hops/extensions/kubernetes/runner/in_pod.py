"""Runs a step in its pod: starts it as on its own machine, and writes its result to the store.

The program of the pod's container (:mod:`.start`) gets this package from the store, and then calls :func:`main`.
"""

# The order in the pod:
# 1. Read the worker's lease, and wait until it changes: a pod that waited long for a node must not run a step whose
#    worker has died. Without a change within a minute it exits with an error.
# 2. Start the step as a process, and watch the lease in a thread: without a change for ``orphan_timeout_s`` the step
#    is ended. A pod is patient: a retry may find it long after its worker counts as dead.
# 3. On SIGTERM, from a deletion or a drained node, end the step a second before Kubernetes would kill the container.
# 4. Write the step's result to the store, then exit with its code. A kill before that leaves no result: the worker
#    reports the reason that Kubernetes gives for the end of the container.

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import HopsError
from airflow_hops.core.processes.polling import Overdue, poll
from airflow_hops.core.processes.programs import module_command
from airflow_hops.core.processes.temporary_folders import variables_of_step
from airflow_hops.core.steps.protocol import StepResult, format_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import Lease, LeaseRecord, Watch
from airflow_hops.extensions.kubernetes.runner.start import leave_error
from airflow_hops.runner.launchers.local import runtime_python, step_variables
from airflow_hops.runner.launchers.process import StepProcess

_START_S = 60.0
"""Seconds within which a worker that waits for the pod beats; it does so every half second while the pod starts."""
_POLL_S = 0.2
RESULT = "result.json"
"""Name of the file with the step's result, beside the worker's lease."""
MORE, CHOSEN = "more-ranks.json", "chosen-ranks.json"
"""Names of the files with the pods of the ranks above the least, and with the host names of the ranks that train."""


@dataclass(frozen=True)
class PodOrder:
    """The order to a pod, which is ``pod.json`` in its Secret, beside the step's spec.

    Attributes:
        folder: Folder of the spec, as on the worker; an empty volume in the pod.
        archives: Addresses of the archives ``package`` and ``code``.
        storage_options: fsspec options of the store.
        store: Root URI of the store.
        code_paths: Folders of user code in the archive ``code``.
        variables: Variables of the step.
        record: Address of the lease of the worker that follows the pod (:mod:`airflow_hops.core.store.leases`).
        beat_s: Seconds between two of its beats.
        orphan_timeout_s: Seconds without a beat after which the step ends.
        grace_s: Seconds between SIGTERM and SIGKILL of the pod.
        gang: Of ranks as pods: :data:`~airflow_hops.core.training.rank_places.GANG_VARIABLE`.
        member: Module of the processes of these ranks: see :class:`~airflow_hops.core.training.rank_places.RankPlace`.
    """

    folder: str
    archives: dict[str, str]
    storage_options: dict[str, Any]
    store: str
    code_paths: list[str]
    variables: dict[str, str]
    record: str
    beat_s: float
    orphan_timeout_s: float
    grace_s: float
    gang: dict[str, Any] = field(default_factory=dict)
    member: str = ""


def main(here: Path) -> int:
    """Runs the step whose Secret is mounted at ``here``; returns the exit code of the pod.

    A pod may have waited for a node for so long that its worker died or the task was given up. So the step begins
    only after a beat that a worker has written while the pod was running.
    """
    order = PodOrder(**json.loads((here / "pod.json").read_text()))
    folder = Path(order.folder)
    store = ArtifactStore(order.store, storage_options=order.storage_options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as process 1, it would be ignored
    lease = Lease(store, order.record)
    try:
        worker = Watch(lease.read())
    except Exception as error:  # raised by the store's client
        leave_error(f"the pod cannot read its worker's beats ({type(error).__name__}: {error}); the step has not begun")
        return 1
    try:
        poll(lambda: _has_beaten(worker, lease), _POLL_S, min(_START_S, order.orphan_timeout_s))
    except Overdue:
        leave_error("no worker waits for this pod any longer; the step has not begun")
        return 1
    print(format_record("the step begins", level=logging.DEBUG), flush=True)
    spec = json.loads((here / "spec.json").read_text())
    spec["code_paths"] = [str(folder / "code" / path) for path in order.code_paths]
    (folder / "spec.json").write_text(json.dumps(spec))
    os.environ["TMPDIR"] = order.folder  # the root file system may be read-only
    variables = {**order.variables, **variables_of_step(folder)}
    runtime = Path(sys.prefix)
    try:
        process = StepProcess.start(
            module_command(runtime_python(runtime), "airflow_hops.ml", folder / "spec.json"),
            env={**step_variables(runtime, spec["code_paths"]), **variables},
            cwd=folder,
            output=sys.stdout.fileno(),
        )
    except HopsError as error:
        result = StepResult(error=f"in the pod's image: {error}", retryable=error.retryable)
        return _leave(store, order, result, 1)
    code = _follow(process, worker, lease, order)
    try:
        return _leave(store, order, StepResult.read(folder / "result.json"), code)
    finally:
        process.kill()


def _has_beaten(worker: Watch[LeaseRecord | None], lease: Lease) -> bool:
    with contextlib.suppress(Exception):  # a store that cannot be reached counts like a missing worker
        worker.see(lease.read())
    return worker.has_changed


def _follow(process: StepProcess, worker: Watch[LeaseRecord | None], lease: Lease, order: PodOrder) -> int:
    """Waits for the step's end; ends it on SIGTERM, or if no worker follows the pod any longer."""
    grace_s = max(order.grace_s - 1, 0.1)
    signal.signal(signal.SIGTERM, lambda *_: process.kill(grace_s))
    threading.Thread(target=_watch_worker, args=(process, worker, lease, order, grace_s), daemon=True).start()
    code = process.wait()
    return 128 - code if code < 0 else code


def _watch_worker(
    process: StepProcess, worker: Watch[LeaseRecord | None], lease: Lease, order: PodOrder, grace_s: float
) -> None:
    while worker.silent_s < order.orphan_timeout_s:
        time.sleep(order.beat_s)
        _has_beaten(worker, lease)
    message = f"no worker has followed this pod for {order.orphan_timeout_s:g} s: the step ends"
    print(format_record(message, level=logging.ERROR), flush=True)
    process.kill(grace_s)


def _leave(store: ArtifactStore, order: PodOrder, result: StepResult | None, code: int) -> int:
    """Writes the result to the store; returns the pod's exit code."""
    if result is None:
        return code or 1
    uri = f"{order.record}/{RESULT}"
    try:
        store.write_text(uri, json.dumps(result.to_dict()))
    except Exception as error:  # raised by the store's client
        message = f"the step's result cannot be written to {uri} ({type(error).__name__}: {error})"
        print(format_record(message, level=logging.ERROR), flush=True)
        leave_error(message)
        return code or 1
    return code
