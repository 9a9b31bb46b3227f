"""Whether a retraining has anything to do: its request is unclaimed, and some rows are new to the champion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.lineage import CONSTANTS, links_of
from airflow_hops.core.models.model_record import read_record
from airflow_hops.core.retraining.decisions import claim_request, note_no_new_rows
from airflow_hops.core.sources.sources import row_source
from airflow_hops.core.steps.run_record import INGEST_ENTRY, record_of
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner.connections import state_of_sources


def training_snapshot(store: ArtifactStore, model: Artifact) -> Artifact | None:
    """Returns the only snapshot that a model was trained on; None if there are several, or if it is unknown.

    Those of the champion that it continues from, and of the constants that it shares, do not count.
    """
    snapshots, seen, waiting = dict[str, Artifact](), set[str](), [model]
    while waiting:
        artifact = waiting.pop()
        if artifact.kind == "snapshot":
            snapshots[artifact.fingerprint] = artifact
        elif artifact.kind != "schema" and artifact.uri not in seen:  # it was frozen in an earlier run
            seen.add(artifact.uri)
            try:
                manifest = store.manifest(artifact.uri)
            except BadInput:
                return None
            if manifest.fingerprint != artifact.fingerprint:  # it was replaced since
                return None
            waiting += [link.source for link in links_of(manifest) if link.followed and link.role != CONSTANTS]
    return snapshots.popitem()[1] if len(snapshots) == 1 else None


def has_unchanged_files(store: ArtifactStore, model: Artifact) -> bool:
    """Returns whether a model was trained on all rows of files that have not changed since.

    False does not imply new rows: this is unknown for sources with a planner, and for models of a window
    in time.
    """
    snapshot = training_snapshot(store, model)
    if snapshot is None:
        return False
    try:
        manifest = store.manifest(snapshot.uri)
        record = record_of(store, manifest)
        if record is None or record.entry != INGEST_ENTRY or record.secrets:
            return False
        sources = {table: row_source(table, value) for table, value in record.params["sources"].items()}
        in_window = record.params["window_end"] and any(source.time_column for source in sources.values())
        if in_window or any(source.planner for source in sources.values()):
            return False
        return state_of_sources(sources) == manifest.cache_key_parts.get("sources")
    except HopsError:  # the training will report the problem with the sources
        return False


def claim_requests(store: ArtifactStore, requests: Sequence[Mapping[str, Any]], producer: Producer) -> str:
    """Claims the requests, extras of asset events; returns why the run has nothing to do if others claimed all."""
    takers = [claim_request(store, each["cause"], producer)["run_id"] for each in requests if each.get("cause")]
    if not takers or len(takers) != len(requests) or producer.run_id in takers:
        return ""
    return f"the request for this retraining was claimed by run {' and '.join(sorted(set(takers)))}"


def note_new_rows(
    store: ArtifactStore, requests: Sequence[Mapping[str, Any]], producer: Producer, snapshot: Artifact
) -> str:
    """Notes for each request whether there are new rows; returns why the run ends if there are none for any."""
    causes = {each["cause"]: each.get("model_name") for each in requests if each.get("cause")}
    trained = []
    for cause, model_name in causes.items():
        champion = read_record(store, model_name).champion if model_name else None
        trained_on = training_snapshot(store, champion.model) if champion else None
        is_same = trained_on is not None and trained_on.fingerprint == snapshot.fingerprint
        note_no_new_rows(store, cause, producer, is_same)
        if champion is not None and is_same:
            trained.append(f"version {champion.version} of model {model_name!r}")
    if not causes or len(trained) != len(causes) or not all(each.get("cause") for each in requests):
        return ""
    return (
        f"the sources have no rows on which {' and '.join(sorted(set(trained)))} was not trained: there is nothing new "
        "to learn. The request counts neither for the cooldown nor for the budget; to train all the same, trigger the "
        "DAG yourself"
    )
