"""The listing of a store that a garbage collection works on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_hops.core.models.model_record import ModelRecord
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.extensions.governance.core.rule import Track


@dataclass(frozen=True)
class StoreListing:
    """A store as a garbage collection has listed it.

    Attributes:
        sizes: Size in bytes of each file, by its path in the store.
        now: Time at which ages are measured.
        oldest: Time from which on runs and captured requests are retained.
        may_be_active: Returns whether a run, by DAG id and run id, may still use its artifacts.
        models: Records of the served models by name.
    """

    store: ArtifactStore
    sizes: Mapping[str, int]
    now: datetime
    oldest: datetime
    may_be_active: Callable[[str, str], bool]
    models: Mapping[str, ModelRecord]

    def modified(self, paths: Iterable[str]) -> dict[str, datetime]:
        """Returns the time of the last change of files; without those that were removed since."""

        def time_of(path: str) -> datetime | None:
            try:
                return self.store.files.modified(f"{self.store.root}/{path}")
            except FileNotFoundError:
                return None

        return {path: time for path, time in in_threads(time_of, paths).items() if time is not None}


@dataclass(frozen=True)
class CapturedFiles:
    """Captured files of a model that are needed: those with names from ``first`` to ``last``."""

    reason: str
    first: str = ""
    last: str = "~"  # sorts after all names


def in_threads(
    work: Callable[[str], object],
    addresses: Iterable[str],
    track: Track = lambda items, description, total: items,
    description: str = "",
) -> dict[str, Any]:
    """Calls a function with each address in threads, since a store may respond slowly."""
    ordered = sorted(addresses)
    with ThreadPoolExecutor(16) as pool:
        return dict(zip(ordered, track(pool.map(work, ordered), description, len(ordered)), strict=True))
