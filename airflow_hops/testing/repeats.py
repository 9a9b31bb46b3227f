"""Contract tests of how runs are repeated (entry points ``airflow_hops.repeats``)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from airflow_hops.core.contract.artifacts import Artifact
from airflow_hops.core.contract.run_record import TRAIN_ENTRY, RunRecord
from airflow_hops.core.extensions import REPEATS, load_all
from airflow_hops.core.repeats import Repeats
from airflow_hops.core.store import ArtifactStore


class RepeatsContract:
    """Tests that every entry passes; a subclass names it, and has a record of its stage and the artifact.

    Attributes:
        name: Name of the entry in the group ``airflow_hops.repeats``.
    """

    name: ClassVar[str]

    @abstractmethod
    def run(self) -> tuple[RunRecord, Artifact]:
        """Returns a run of the stage that can be repeated."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> ArtifactStore:
        return ArtifactStore(str(tmp_path / "store"))

    @pytest.fixture
    def repeats(self) -> Repeats:
        return load_all(REPEATS, Repeats)[self.name]

    def test_repeats_its_stage(self, repeats: Repeats, store: ArtifactStore) -> None:
        record, artifact = self.run()
        repeat = repeats.repeat_of(store, record, artifact, None)
        assert repeat is not None
        assert (repeat.record.dag_id, repeat.record.code) == (record.dag_id, record.code)

    def test_leaves_other_stages(self, repeats: Repeats, store: ArtifactStore) -> None:
        record, artifact = self.run()
        assert repeats.repeat_of(store, replace(record, entry=TRAIN_ENTRY), artifact, None) is None
