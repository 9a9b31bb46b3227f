"""Addresses of what outlives runs, and those that version 0.1.0 wrote it to.

What lies at an earlier address stays there and in use, unless there is something at the new one: nothing is copied, so
no kill can lose it, pages need no right to write, and workers of both versions go on from one state.
"""

from __future__ import annotations

import re

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.store.artifact_store import ArtifactStore


def task_state(store: ArtifactStore, producer: Producer, name: str) -> str:
    """Returns the address of a file or folder of a task, ``_state/tasks/<dag>/<task>/<name>``.

    In version 0.1.0 it was ``_state/<dag>/<task>/<name>``.
    """
    ids = (producer.dag_id, producer.task)
    folder = in_use(store, store.internal("_state", "tasks", *ids), earlier_address(store, "_state", *ids), name)
    return f"{folder}/{name}"


def in_use(store: ArtifactStore, folder: str, earlier: str, name: str) -> str:
    """Returns a folder, or an earlier one if only that has a name."""
    is_earlier = folder != earlier and name not in store.names(folder) and name in store.names(earlier)
    return earlier if is_earlier else folder


def earlier_address(store: ArtifactStore, *names: str) -> str:
    """Returns an address as version 0.1.0 joined it, which wrote ``_`` for characters that are unsafe in paths.

    Names of dots alone, which lead elsewhere, were refused: they have an address at which nothing is.
    """
    return "/".join([store.root, *(re.sub(r"[^\w.+@-]|^\.+$", "_", name) for name in names)])
