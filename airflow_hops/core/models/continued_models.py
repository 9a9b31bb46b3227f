"""The champion that the trainings of a DAG run continue from: ``<store>/<dag>/<run>/<model>@champion/uses.json``.

The first task of the run that asks creates the file, so that retries, and the run's other tasks, continue from the same
version, even if another was promoted meanwhile. As a record of uses (:mod:`airflow_hops.core.store.uses`), it protects
the model from a garbage collection, and is removed with the run.
"""

from __future__ import annotations

import contextlib
import json

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.lineage import COMPARED, CONSTANTS
from airflow_hops.core.models.model_record import read_record
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.store.uses import USES_NAME
from airflow_hops.core.times import now


def champion_of_run(store: ArtifactStore, producer: Producer, model_name: str) -> tuple[Artifact, int] | None:
    """Returns the champion and its version as of when the run first asked; None if there was none."""
    run = {"dag_id": producer.dag_id, "run_id": producer.run_id}
    uri = store.uri(*run.values(), f"{model_name}@{COMPARED}", USES_NAME)
    try:
        value = store.read_json(uri)
    except FileNotFoundError:
        served = read_record(store, model_name).champion
        model = None if served is None else {"version": served.version, "model": served.model.to_dict()}
        uses = [] if served is None else [served.model.uri]
        with contextlib.suppress(FileExistsError):  # another task of the run asked at the same time
            store.create_text(uri, json.dumps({**run, "at": now(), "artifacts": uses, COMPARED: model}) + "\n")
        value = store.read_json(uri)
    champion = value[COMPARED]
    return None if champion is None else (Artifact.from_dict(champion["model"]), int(champion["version"]))


def constants_of(store: ArtifactStore, model: Artifact) -> Artifact:
    """Returns the statistics that the constants of a model's transform come from; raises BadInput if unknown."""
    for examples in store.find(model)[1].inputs.get("examples", ()):
        inputs = store.find(examples)[1].inputs
        for statistics in (*inputs.get(CONSTANTS, ()), *inputs.get("statistics", ())):
            result, manifest = store.find(statistics)
            return manifest.reference(result.uri)
    raise BadInput(f"{model.uri}: the model was trained without a transform")
