"""Contract tests of stages, for pytest in the runtime environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.extensions import STAGES, extensions
from airflow_hops.core.processes.programs import with_package
from airflow_hops.core.steps.protocol import Output, StepResult, StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.__main__ import run_step


class StageContract:
    """Tests that every stage passes; a subclass names the stage and overrides fixtures where necessary.

    Attributes:
        name: Name of the stage in the entry-point group ``airflow_hops.stages``.
        output_kind: Kind of the artifact that it writes; None if it returns a JSON value.
    """

    name: ClassVar[str]
    output_kind: ClassVar[str | None] = None

    @pytest.fixture
    def store(self, tmp_path: Path) -> ArtifactStore:
        """Returns an empty store; ``store.create`` makes the inputs."""
        store = ArtifactStore(str(tmp_path / "store"))
        store.make()
        return store

    @pytest.fixture
    def params(self) -> Mapping[str, object]:
        """Returns the stage's keyword arguments as JSON values."""
        return {}

    @pytest.fixture
    def inputs(self, store: ArtifactStore) -> Mapping[str, tuple[Artifact, ...]]:
        return {}

    @pytest.fixture
    def run(
        self, store: ArtifactStore, params: Mapping[str, object], inputs: Mapping[str, tuple[Artifact, ...]]
    ) -> object:
        """Returns a function that runs the stage as the step of a DAG run."""

        def run(run_id: str = "first", **changed: object) -> StepResult:
            producer = Producer("contract", run_id, "stage")
            spec = StepSpec(
                step="stage",
                entry=extensions(STAGES)[self.name].value,
                params={**params, **changed},
                inputs=inputs,
                output=Output(store.address(producer, self.output_kind), self.output_kind)
                if self.output_kind
                else None,
                store=store.root,
                producer=producer,
            )
            return run_step(StepSpec.from_json(spec.to_json()))

        return run

    def test_loads_from_entry_point(self) -> None:
        assert callable(extensions(STAGES)[self.name].load())

    def test_import_starts_no_threads(self) -> None:
        """The warm process imports the module and forks, which loses threads."""
        module = extensions(STAGES)[self.name].value.partition(":")[0]
        program = f"import threading, {module}; print(threading.active_count())"
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, capture_output=True, text=True, env=with_package({"PYTHONPATH": ":".join(sys.path)})
        )
        assert done.stdout.split()[-1:] == ["1"], done.stderr

    def test_makes_its_output(self, run: Callable[..., StepResult], store: ArtifactStore) -> None:
        result = run()
        assert result.error is None, result.error
        assert result.is_artifact == (self.output_kind is not None)
        if result.is_artifact:
            artifact = Artifact.from_dict(result.value)
            assert artifact.kind == self.output_kind
            assert store.manifest(artifact.uri).fingerprint == artifact.fingerprint

    def test_repeats_its_output(self, run: Callable[..., StepResult]) -> None:
        """Equal inputs give equal content, so that artifacts can be reused."""
        first, second = run("first"), run("second")
        if first.is_artifact:
            assert first.value["fingerprint"] == second.value["fingerprint"]
            assert first.value["properties"] == second.value["properties"]
        else:
            assert first.value == second.value

    def test_refuses_unknown_params(self, run: Callable[..., StepResult]) -> None:
        assert "unknown_to_the_stage" in (run(unknown_to_the_stage=1).error or "")
