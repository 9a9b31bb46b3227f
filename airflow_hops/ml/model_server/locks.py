"""Mutual exclusion of tasks: ``flock`` on a shared file system, numbered leases in an object store."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.core.processes.locks import locked
from airflow_hops.core.processes.periodic import calling_periodically
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.files import LocalFiles

_STORE_POLL_S = 0.5
_BEAT_S = 5.0
_STALE_S = 30.0
"""Seconds without a beat after which a holder counts as dead; it beats six times as often."""

_RELEASED = "released"


@contextlib.contextmanager
def file_lock(path: Path, what: str, timeout_s: float) -> Iterator[None]:
    """Holds a lock file of a file system that all tasks share.

    Raises:
        HopsError: another task has held it for ``timeout_s`` seconds.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(path, timeout_s))
        except TimeoutError:
            raise HopsError(f"{what}: another task has held {path} for {timeout_s:g} s") from None
        yield


def store_lock(
    store: ArtifactStore, folder: str, what: str, timeout_s: float
) -> contextlib.AbstractContextManager[None]:
    """Holds a lock in the artifact store; arguments and errors as those of :func:`store_lease`."""
    if isinstance(store.files, LocalFiles):
        return file_lock(store.files.path(folder) / ".lock", what, timeout_s)
    return store_lease(store, folder, what, timeout_s)


@contextlib.contextmanager
def store_lease(store: ArtifactStore, folder: str, what: str, timeout_s: float) -> Iterator[None]:
    """Holds a lease in a store without locks.

    Leases are numbered files. Number n + 1 may be taken once n was released, or has not beaten for 30 seconds; only one
    of several tasks that try succeeds in creating the file.

    Args:
        store: The artifact store.
        folder: Address of the leases in it.
        what: Name of the locked thing, for the error.
        timeout_s: Seconds to wait for another task.

    Raises:
        HopsError: another task has held it for ``timeout_s`` seconds.
    """
    deadline_s = time.monotonic() + timeout_s
    seen, seen_s = "", time.monotonic()
    while True:
        number = _newest(store, folder)
        state = _state(store, folder, number)
        if state != seen:
            seen, seen_s = state, time.monotonic()
        if state == _RELEASED or time.monotonic() - seen_s > _STALE_S:
            taken = _lease(folder, number + 1)
            with contextlib.suppress(FileExistsError):
                store.create_text(taken, _beat())
                if _newest(store, folder) == number + 1:
                    break
                store.remove_text(taken)  # too late: this number was taken and removed before
        if time.monotonic() > deadline_s:
            raise HopsError(f"{what}: another task has held {_lease(folder, number)} for {timeout_s:g} s")
        time.sleep(_STORE_POLL_S)

    def beat() -> None:
        with contextlib.suppress(Exception):  # the next beat may succeed; otherwise another task takes over
            store.write_text(taken, _beat())

    try:
        with calling_periodically(beat, _BEAT_S):
            store.remove_text(_lease(folder, number))
            yield
    finally:
        store.write_text(taken, _RELEASED)


def _beat() -> str:
    return f"held {uuid.uuid4().hex}"


def _newest(store: ArtifactStore, folder: str) -> int:
    return max((int(name) for name in store.names(folder) if name.isdigit()), default=0)


def _state(store: ArtifactStore, folder: str, number: int) -> str:
    if not number:
        return _RELEASED
    try:
        return store.read_text(_lease(folder, number))
    except FileNotFoundError:  # the next holder has removed it meanwhile
        return f"gone {number}"


def _lease(folder: str, number: int) -> str:
    return f"{folder}/{number}"
