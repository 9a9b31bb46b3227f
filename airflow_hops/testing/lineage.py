"""Contract tests of lineage backends (entry points ``airflow_hops.lineage``)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from airflow_hops.core.contract.artifacts import Artifact, Producer
from airflow_hops.core.extensions import LINEAGE, load_extension
from airflow_hops.core.store import ArtifactStore
from airflow_hops.operators.base import HopsTask


class Evaluate(HopsTask):
    """A task with one input."""

    input_arguments = ("model",)

    def __init__(self, *, model: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model = model


class LineageContract:
    """Tests that every backend passes; a subclass names it and reads the names of datasets.

    Attributes:
        name: Name in the group; the method of the operators for that backend calls it.
    """

    name: ClassVar[str]

    def datasets(self, described: Any) -> tuple[list[str], list[str]]:
        """Returns the ``file://`` addresses of inputs and outputs in the backend's result."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Any) -> ArtifactStore:
        return ArtifactStore(str(tmp_path / "store"))

    def artifact(self, store: ArtifactStore, task: str, kind: str, **inputs: Artifact) -> Artifact:
        """Writes an artifact to the store."""
        producer = Producer("contract", "run", task)
        values = {role: (each,) for role, each in inputs.items()}
        with store.create(store.address(producer, kind), kind, producer, inputs=values) as writer:
            (writer.path / "content").write_text(task)
            return writer.commit()

    def test_describes_inputs_and_output(self, store: ArtifactStore) -> None:
        describe = load_extension(LINEAGE, self.name)
        model = self.artifact(store, "train", "model")
        task = Evaluate(task_id="evaluate", model=model.to_dict())
        task.hook = SimpleNamespace(store=store)  # type: ignore[assignment]
        assert self.datasets(describe(task)) == ([model.uri], [])
        made = self.artifact(store, "evaluate", "evaluation", model=model)
        task.made = made
        assert self.datasets(describe(task)) == ([model.uri], [made.uri])
