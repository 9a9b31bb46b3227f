"""Artifacts of other runs that a task uses: ``<store>/<dag>/<run>/<task>/uses.json``.

A run refers to such an artifact before its own manifests do: after a hit of the step cache, and while a step runs.
A garbage collection reads these files and retains the artifacts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.times import now

USES_NAME = "uses.json"


def record_uses(store: ArtifactStore, producer: Producer, artifacts: Iterable[Artifact]) -> None:
    """Records the artifacts of other runs that a task is about to read. Call it before reading their manifests."""
    own = f"{store.uri(producer.dag_id, producer.run_id)}/"
    addresses = sorted({artifact.uri for artifact in artifacts if not artifact.uri.startswith(own)})
    if addresses:
        uri = store.uri(producer.dag_id, producer.run_id, producer.task, USES_NAME)
        value = {"dag_id": producer.dag_id, "run_id": producer.run_id, "at": now(), "artifacts": addresses}
        store.write_text(uri, json.dumps(value) + "\n")
