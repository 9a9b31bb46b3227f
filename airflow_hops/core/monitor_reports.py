"""Index of all comparisons and measurements of a model's versions, from all DAGs.

``<store>/_state/monitored/<model>/<version>/<kind>/<dag>/<end>@<made>@<task instance>.json`` refers to a ``skew`` or
``performance`` artifact. ``<end>`` is the end of its data, so the names sort by it. Files of version 0.1.0 are beside
the folders of the DAGs, as ``<end>@<made>@<dag>@<task instance>.json``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_hops.core.artifacts.artifact import Artifact, Producer, name_in, segment
from airflow_hops.core.errors import BadInput, UnreadableFile
from airflow_hops.core.json_fields import CheckedFields
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.times import now, sortable

_NAME = re.compile(r"[^/@]+@[^/@]+@[^/@]+@[^/@]+\.json|[^/]+/[^/@]+@[^/@]+@[^/@]+\.json")
KEPT = 200
"""Maximum number of artifacts of each kind that are listed for a version, for each DAG."""


@dataclass(frozen=True)
class MonitoringReport(CheckedFields):
    """A comparison or a measurement.

    Attributes:
        at: Creation time, ISO 8601 UTC.
    """

    uri: str
    kind: str
    fingerprint: str
    at: str

    @property
    def artifact(self) -> Artifact:
        """Returns the reference to the artifact."""
        return Artifact(self.uri, self.kind, self.fingerprint)


def note_report(
    store: ArtifactStore,
    model_name: str,
    artifact: Artifact,
    versions: Sequence[int],
    end: str | None,
    producer: Producer,
) -> None:
    """Adds a ``skew`` or ``performance`` artifact to the index, replacing that of the same task instance.

    ``end`` is the end of its data, ISO 8601; None if unknown.
    """
    made = MonitoringReport(artifact.uri, artifact.kind, artifact.fingerprint, now())
    own = f"@{hashlib.sha256(artifact.uri.encode()).hexdigest()[:16]}.json"
    for version in versions:
        name = f"{segment(producer.dag_id)}/{sortable(end or made.at)}@{sortable(made.at)}{own}"
        folder = _folder(store, model_name, version, artifact.kind)
        store.write_text(f"{folder}/{name}", json.dumps(made.to_dict()) + "\n")
        listed = listed_reports(store, model_name, version, artifact.kind)
        of_dag = [each for dag_id, each in listed if dag_id == producer.dag_id]
        replaced = {each for each in of_dag if each.endswith(own)} - {name}
        for old in replaced.union(of_dag[KEPT:]):
            store.remove_text(f"{folder}/{old}")


def listed_reports(store: ArtifactStore, model_name: str, version: int, kind: str) -> list[tuple[str, str]]:
    """Returns DAG and name, ``<dag>/<file>``, of the listed artifacts of a version, newest data first."""
    folder = _folder(store, model_name, version, kind)
    names = store.names(folder)
    listed = [f"{dag}/{name}" for dag in names if "@" not in dag for name in store.names(f"{folder}/{dag}")]
    known = [(_dag_of(name), name) for name in [*names, *listed] if _NAME.fullmatch(name)]
    return sorted(known, key=lambda each: each[1].rpartition("/")[2], reverse=True)


@dataclass(frozen=True)
class ListedReport:
    """A listed artifact of a model, before its file in the index is read."""

    model_name: str
    version: int
    kind: str
    dag_id: str
    name: str

    def read(self, store: ArtifactStore) -> MonitoringReport:
        """Reads the file; see :func:`read_report`."""
        return read_report(store, self.model_name, self.version, self.kind, self.name)


def reports_of_model(store: ArtifactStore, model_name: str, kind: str) -> list[ListedReport]:
    """Returns the listed artifacts of all versions of a model, most recently made first."""
    versions = [int(name) for name in store.names(store.internal("_state", "monitored", model_name)) if name.isdigit()]
    listed = [
        ListedReport(model_name, version, kind, dag_id, name)
        for version in versions
        for dag_id, name in listed_reports(store, model_name, version, kind)
    ]
    made = {each: each.name.rpartition("/")[2].split("@")[1] for each in listed}
    return sorted(listed, key=lambda each: (made[each], each.version, each.name), reverse=True)


def monitoring_reports(store: ArtifactStore, model_name: str, kind: str) -> Iterator[MonitoringReport]:
    """Yields the listed artifacts of all versions of a model, most recently made first.

    Raises:
        BadInput: a file is damaged, or names an artifact of another DAG.
    """
    for each in reports_of_model(store, model_name, kind):
        yield each.read(store)


def read_report(store: ArtifactStore, model_name: str, version: int, kind: str, name: str) -> MonitoringReport:
    """Reads the report with a name.

    Raises:
        BadInput: the file is damaged, or names an artifact of another DAG.
        FileNotFoundError: the file was removed.
    """
    uri = f"{_folder(store, model_name, version, kind)}/{name}"
    try:
        result = MonitoringReport.from_dict(store.read_json(uri))
    except TypeError as error:
        raise UnreadableFile(uri, f": not a comparison or a measurement ({error}); remove it") from error
    if store.dag_of(result.uri) != _dag_of(name):
        raise BadInput(f"{uri}: names an artifact of another DAG; remove it")
    return result


def _dag_of(name: str) -> str:
    dag, is_in_folder, _ = name.partition("/")
    return name_in(dag if is_in_folder else name.split("@")[2])


def _folder(store: ArtifactStore, model_name: str, version: int, kind: str) -> str:
    return store.internal("_state", "monitored", model_name, str(version), kind)
