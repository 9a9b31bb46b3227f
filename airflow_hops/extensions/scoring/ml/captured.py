"""Captured rows of scores, in the layout of the model server's captured requests, each window's rows once.

Monitors and rollouts read them as they read requests: a row is a request whose ID is its key and its window.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.capture_layout import folder_name
from airflow_hops.core.models.model_record import read_record
from airflow_hops.core.steps.shared_places import capture_path, storage_options_of
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import exclusive
from airflow_hops.serving.capture.files import CapturedFiles, open_files

# Order of a commit, under the window's lock: publish the files that are not there yet (their names tell window, version
# and content), remove the window's other files, write the counts. A kill leaves files of a window in whatever state:
# the next try publishes what is missing and removes the rest. What is there already keeps its time, so that a cleared
# task whose rows are the same changes nothing.

_LOCK_S = 300.0


@dataclass(frozen=True)
class ScoredWindow:
    """The rows that one task scores in one window: a retry, a cleared task or a backfill replaces them.

    Attributes:
        id: Digest of the task and the window.
        name: End of the window, ISO 8601, or the run.
    """

    store: ArtifactStore
    model_name: str
    id: str
    name: str

    @classmethod
    def of(
        cls, store: ArtifactStore, model_name: str, producer: Producer, window: Sequence[str | None] | None
    ) -> ScoredWindow:
        """Returns the window of the scored examples; without one, the task's run takes its place."""
        what = [producer.dag_id, producer.task, *(window or (producer.run_id,))]
        name = window[1] if window and window[1] else producer.run_id
        return cls(store, model_name, hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16], name)

    @property
    def staging(self) -> str:
        """Returns the address of the folder for rows that executors on other hosts have scored."""
        return self.store.internal("_serving", "scoring", self.id)

    def commit(
        self,
        services: Mapping[str, str],
        files: Mapping[int, Mapping[Path, str]],
        counts: Mapping[int, Mapping[str, int]],
        captured_at: datetime,
        shadow: int | None = None,
    ) -> None:
        """Publishes captured rows and, while there is a canary, the counts of each version.

        Args:
            services: Services of the step, which name the place of captured rows.
            files: Digests of the rows without their time, by file and version.
            counts: ``rows`` and ``failed`` by version.
            captured_at: Time of the rows.
            shadow: Version whose scores are not handed on.
        """
        place, folder = capture_path(services), _counts_of(self.store, self.model_name)
        with exclusive(self.store, f"{folder}.lock", f"the scores of {self.model_name!r}", _LOCK_S):
            challenger = read_record(self.store, self.model_name).challenger
            canary = None if challenger is None else challenger.since
            recorded = dict(_windows(self.store, self.model_name))
            counted = recorded.get(f"{self.id}.json", {}).get("canary")
            if place is not None:
                captured = open_files(place, storage_options_of(services, place, self.store))
                self._publish(captured, files, shadow, may_stay=canary in (None, counted))
            if canary is not None:
                value = {"at": captured_at.isoformat(), "canary": canary, "versions": dict(counts)}
                self.store.write_text(f"{folder}/{self.id}.json", json.dumps(value))
            for name, each in recorded.items():  # an earlier version did not write of which canary
                if canary is None or (each.get("canary", canary) != canary and name != f"{self.id}.json"):
                    self.store.remove_text(f"{folder}/{name}")

    def _publish(
        self, captured: CapturedFiles, files: Mapping[int, Mapping[Path, str]], shadow: int | None, *, may_stay: bool
    ) -> None:
        """Publishes the files that are not there, and removes the window's others."""
        # A rollout reads rows by the time of their file: those of a window that it has not counted appear again.
        folder = folder_name(self.model_name)
        wanted = {}
        for version, digests in files.items():
            for number, (path, digest) in enumerate(digests.items()):
                wanted[f"{self.id}-v{version}-{'shadow-' * (version == shadow)}{number}-{digest}.parquet"] = path
        own = {name: name.partition("-")[2] for name in captured.sizes(folder) if f"Z-{self.id}-v" in name}
        stay = {name for name, tail in own.items() if may_stay and tail in wanted}
        present = {own[name] for name in stay}
        for tail, path in wanted.items():
            if tail not in present:
                captured.publish(folder, tail, path.read_bytes())
        for name in own.keys() - stay:
            captured.remove(folder, name)


def scored_rows(store: ArtifactStore, model_name: str, since: str) -> dict[int, dict[str, int]]:
    """Returns the rows that each version scored since a time, and those on which it failed: ``rows``, ``failed``."""
    totals: dict[int, dict[str, int]] = {}
    for _, value in _windows(store, model_name):
        is_since = datetime.fromisoformat(value["at"]) >= datetime.fromisoformat(since)
        for version, figures in value["versions"].items() if is_since else ():
            total = totals.setdefault(int(version), {"rows": 0, "failed": 0})
            for name in total:
                total[name] += figures[name]
    return totals


def _windows(store: ArtifactStore, model_name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields name and content of each file of counts: ``at``, ``canary``, its start, and ``versions``."""
    folder = _counts_of(store, model_name)
    for name in store.names(folder):
        if name.endswith(".json"):
            yield name, store.read_json(f"{folder}/{name}")


def _counts_of(store: ArtifactStore, model_name: str) -> str:
    return store.internal("_serving", "scored", model_name)
