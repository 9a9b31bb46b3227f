"""Runs the search stage in a process of its own, as a step does."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.steps.protocol import parse_line
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.files import LocalFiles
from airflow_hops.core.training.options import SINGLE, TrainingOptions
from airflow_hops.extensions.experiments.core.search import SearchOptions, StudyRecord, TrialRecord
from airflow_hops.extensions.experiments.core.studies import StudyFolder, study_folder

STEPS = Path(__file__).parents[3] / "steps"


@dataclass
class Searches:
    """Searches; calling it answers what the step returned.

    Attributes:
        store: Where the record goes.
        folder: For scratch.
        own_process: The fixture of that name.
        lines: What the last search has said.
    """

    store: ArtifactStore
    folder: Path
    own_process: Any
    lines: list[str] = field(default_factory=list)

    def __call__(
        self,
        train: str,
        space: Any,
        *,
        dag_id: str = "tests",
        run_id: str = "one",
        services: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        metrics: list[str] | None = None,
        directions: list[str] | None = None,
        inputs: Mapping[str, Artifact] | None = None,
        **options: Any,
    ) -> Any:
        """Searches with a function of the steps; the loss is to be small, unless it is said otherwise."""
        how = {"strategy": SINGLE, "np": 1, "train": f"search_functions:{train}", "params": params or {}}
        values = SearchOptions(
            training=TrainingOptions(**{**how, **(training or {})}).to_dict(),
            space=space,
            metrics=metrics or ["loss"],
            directions=directions or ["minimize"],  # type: ignore[arg-type]
            **options,
        )
        log = self.folder / "said"
        log.write_text("")
        place = (self.store.root, self.store.storage_options)
        try:
            run = (dag_id, run_id)
            return self.own_process(
                search, dict(os.environ), place, self.folder, log, run, services, inputs or {}, values.to_dict()
            )
        finally:
            self.lines[:] = [parse_line(line).text for line in log.read_text().split("\n")]

    def study(self, name: str = "one", dag_id: str = "tests") -> StudyFolder:
        return study_folder(self.store, dag_id, "search", name)

    def record(self, name: str = "one") -> StudyRecord:
        study = self.study(name).read()
        assert study is not None
        return study

    def optuna(self, name: str = "one") -> optuna.Study:
        """Returns the study as anybody opens it."""
        folder = self.study(name)
        assert isinstance(folder.store.files, LocalFiles)
        journal = JournalFileBackend(str(folder.store.files.path(f"{folder.uri}/journal.log")))
        return optuna.load_study(study_name=name, storage=JournalStorage(journal))

    def trials(self, name: str = "one") -> list[TrialRecord]:
        return self.study(name).trials()


def search(
    environment: dict[str, str],
    place: tuple[str, Mapping[str, Any]],
    folder: Path,
    log: Path,
    dag_run: tuple[str, str],
    services: Mapping[str, str] | None,
    inputs: Mapping[str, Artifact],
    given: dict[str, Any],
) -> Any:
    import sys

    from airflow_hops.extensions.experiments.ml.search.stage import run
    from airflow_hops.ml.step.context import RecordHandler
    from tests.ml.conftest import step_context

    os.environ |= environment
    (folder / "pid").write_text(str(os.getpid()))
    sys.path.insert(0, str(STEPS))
    with log.open("w") as output:
        os.dup2(output.fileno(), 1)
    logging.basicConfig(level=logging.INFO, handlers=[RecordHandler()], force=True)
    store = ArtifactStore(place[0], storage_options=place[1])
    options = {"task_id": "search", "services": services, "code_paths": (str(STEPS),)}
    options |= dict(zip(("dag_id", "run_id"), dag_run, strict=True))
    return run(step_context(store, folder, kind="model", params=given, **options, **inputs), **given)
