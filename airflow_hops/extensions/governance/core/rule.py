"""Garbage collection: the listing that it works on, the rule, and the lists of things that are removed and retained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_hops.core.errors import InvalidArgument
from airflow_hops.core.models.model_record import ModelRecord
from airflow_hops.core.store.artifact_store import ArtifactStore

IsActive = Callable[[str, str], bool | None]
"""Returns whether a DAG run, by DAG id and run id, is queued or running; None if this Airflow does not know it."""

Track = Callable[[Iterable[Any], str, int], Iterable[Any]]
"""Yields the same items and shows progress, given a description and the number of items, as ``rich.progress.track``."""

Tracked = Callable[[Sequence[str]], Sequence[Mapping[str, Any]]]
"""Deletes runs and versions in MLflow by their URIs, and returns all."""


@dataclass(frozen=True)
class RetentionRule:
    """Runs to retain although nothing that serves needs them.

    Attributes:
        keep_days: Age in days, counted from the newest artifact of a run, up to which the run is retained; also the age
            up to which captured requests are retained.
        keep_runs: Number of newest runs of each DAG to retain.
        keep_versions: Number of newest former champions of each model to retain for a rollback.
        unknown_runs: Whether to remove artifacts of runs that this Airflow does not know. They may be those of another
            Airflow with the same store, which alone can tell whether they are active.

    Raises:
        BadInput: a number is out of range.
    """

    keep_days: float = 30
    keep_runs: int = 10
    keep_versions: int = 3
    unknown_runs: bool = False

    def __post_init__(self) -> None:
        for name, least in (("keep_days", 1), ("keep_runs", 0), ("keep_versions", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
                raise InvalidArgument(name, value, f", expected a number of at least {least}")


@dataclass(frozen=True)
class Removal:
    """Files, or an entry of MLflow, that nothing needs.

    Attributes:
        uri: Address of an artifact or of another folder, or MLflow's URI of a run or a version.
        kind: Kind of the artifact, ``checkpoints``, ``unfinished artifact``, ``captured requests``,
            ``training record``, ``MLflow entry``, or a name for files of an extension.
        created_at: Time of its publication, of its oldest file or, if it is unfinished, of its newest, with its zone.
        paths: Paths of the files in the folder; empty for all.
    """

    uri: str
    kind: str
    created_at: datetime
    size_bytes: int
    reason: str
    paths: Sequence[str] = ()


@dataclass(frozen=True)
class RetentionPlan:
    """The result of marking.

    Attributes:
        removals: Things that nothing needs, by address.
        kept: Reasons for retaining the other artifacts and captured requests, by address.
        size_bytes: Size of the latter.
    """

    removals: Mapping[str, Removal] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    size_bytes: int = 0


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
