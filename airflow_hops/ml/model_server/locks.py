"""Mutual exclusion of tasks: ``flock`` on a shared file system, leases in an object store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.core.processes.locks import locked
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.files import LocalFiles
from airflow_hops.core.store.leases import Lease


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


@contextlib.contextmanager
def store_lock(store: ArtifactStore, folder: str, what: str, timeout_s: float) -> Iterator[None]:
    """Holds a lock in the artifact store: a file of a shared file system, or a lease in an object store.

    Args:
        store: The artifact store.
        folder: Address of the lock in it.
        what: Description of the lock, for the error.
        timeout_s: Seconds to wait for another task.

    Raises:
        HopsError: another task has held it for ``timeout_s`` seconds, or has taken it from this one.
    """
    if isinstance(store.files, LocalFiles):
        with file_lock(store.files.path(folder) / ".lock", what, timeout_s):
            yield
        return
    lease = Lease(store, folder, what=what, advice="a retry waits again, and repairs what two have changed")
    with lease.held(timeout_s):
        yield
        lease.check()
