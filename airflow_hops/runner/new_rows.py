"""Whether the sources of a champion have rows that it was not trained on."""

from __future__ import annotations

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.lineage import CONSTANTS, links_of
from airflow_hops.core.sources.registered_sources import row_source
from airflow_hops.core.sources.source_files import fingerprint_of_sources
from airflow_hops.core.steps.run_record import INGEST_ENTRY
from airflow_hops.core.steps.run_records import record_of
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner.connections import with_storage_options


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
        return fingerprint_of_sources(with_storage_options(sources)) == manifest.cache_key_parts.get("sources")
    except HopsError:  # the training will report the problem with the sources
        return False
