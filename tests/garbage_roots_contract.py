"""Tests that all roots of the garbage collection pass."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.extensions import GARBAGE_ROOTS, load_all
from airflow_hops.core.retention.collection import GarbageCollection
from airflow_hops.core.retention.garbage_roots import FileRemoval, GarbageRoots
from airflow_hops.core.retention.rule import RetentionRule
from airflow_hops.core.store import ArtifactStore


class GarbageRootsContract:
    """A subclass names its entry in the group ``airflow_hops.garbage_roots``, and writes its files."""

    name: ClassVar[str]

    @abstractmethod
    def write(self, store: ArtifactStore, artifact: str) -> set[str]:
        """Writes files that name ``artifact``, if artifacts are needed, and files that nothing needs in a year.

        Returns:
            Addresses of the latter.
        """

    @pytest.fixture
    def store(self, tmp_path: Path) -> ArtifactStore:
        return ArtifactStore(str(tmp_path / "store"))

    @pytest.fixture
    def artifact(self, store: ArtifactStore) -> str:
        """Returns the address of an artifact that nothing else needs."""
        producer = Producer("contract", "run", "task")
        with store.create(store.address(producer, "kind"), "kind", producer) as writer:
            (writer.path / "content").write_text("content")
            return writer.commit().uri

    @pytest.fixture
    def garbage(self, store: ArtifactStore, artifact: str) -> set[str]:
        return self.write(store, artifact)

    def collection(self, store: ArtifactStore, **options: Any) -> GarbageCollection:
        """Returns a collection in a year, for which no run is active."""
        in_a_year = datetime.now(UTC) + timedelta(days=365)
        return GarbageCollection(store, RetentionRule(keep_runs=0), lambda dag, run: False, in_a_year, **options)

    def test_loads_from_entry_point(self) -> None:
        assert isinstance(load_all(GARBAGE_ROOTS, GarbageRoots)[self.name], GarbageRoots)

    def test_removes_only_garbage(self, store: ArtifactStore, artifact: str, garbage: set[str]) -> None:
        needs_artifact = type(load_all(GARBAGE_ROOTS, GarbageRoots)[self.name]).needed is not GarbageRoots.needed
        removed = self.collection(store).remove().removals.keys()
        assert removed == garbage | (set() if needs_artifact else {artifact})
        assert store.exists(artifact) == needs_artifact
        assert not any(store.files.exists(uri) for uri in garbage)

    def test_retains_what_is_new(self, store: ArtifactStore, garbage: set[str]) -> None:
        assert GarbageCollection(store, RetentionRule(), lambda dag, run: False).plan().removals == {}

    def test_retains_files_that_are_written_meanwhile(self, store: ArtifactStore, garbage: set[str]) -> None:
        def write_again(items: Iterable[Any], description: str, total: int) -> Iterable[Any]:
            if description == "Removing":
                for removal in (each for each in items if isinstance(each, FileRemoval)):
                    content = store.files.read(removal.uri)
                    store.remove_text(removal.uri)
                    store.files.write(removal.uri, content)
            return items

        self.collection(store, track=write_again).remove()
        assert all(store.files.exists(uri) for uri in garbage)
