"""Mutual exclusion of tasks: ``flock`` on a shared file system, leases in an object store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.core.processes.locks import locked
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.files import LocalFiles
from airflow_hops.core.store.leases import Lease

_STORE_POLL_S = 0.5


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
    """Holds a lease (:mod:`airflow_hops.core.store.leases`) in a store without locks.

    Args:
        store: The artifact store.
        folder: Address of the lease in it.
        what: Description of the lock, for the error.
        timeout_s: Seconds to wait for another task.

    Raises:
        HopsError: another task has held it for ``timeout_s`` seconds, or has taken it from this one.
    """
    lease, deadline_s = Lease(store, folder), time.monotonic() + timeout_s
    while not lease.try_take():
        if time.monotonic() > deadline_s:
            raise HopsError(f"{what}: another task has held {lease.address} for {timeout_s:g} s")
        time.sleep(_STORE_POLL_S)
    try:
        with lease.beating():
            yield
        if lease.is_lost:
            raise HopsError(
                f"{what}: another task has taken {folder}, since this one could not write there for a minute; both "
                "may have changed it; a retry repairs it"
            )
    finally:
        lease.release()
