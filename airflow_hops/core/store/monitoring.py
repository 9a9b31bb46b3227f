"""Which comparisons and measurements there are of a model's versions, whoever made them.

``<store>/_state/monitored/<model>/<version>/<kind>/<end>@<made>@<dag>@<task instance>.json`` is a ``skew`` or
``performance`` artifact. ``<end>`` is the end of its data: the newest data come last in the order of the names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_hops.core.contract.artifacts import Artifact, BadInput, Producer
from airflow_hops.core.contract.json_fields import CheckedFields
from airflow_hops.core.contract.times import now, sortable
from airflow_hops.core.store.artifact_store import ArtifactStore

KEPT = 200
"""Artifacts of each kind that are listed of a version, of each DAG."""


@dataclass(frozen=True)
class MonitoringReport(CheckedFields):
    """A comparison or a measurement.

    Attributes:
        uri: Address of the artifact.
        kind: ``skew`` or ``performance``.
        fingerprint: Its fingerprint.
        at: When it was made, ISO 8601 UTC.
    """

    uri: str
    kind: str
    fingerprint: str
    at: str

    @property
    def artifact(self) -> Artifact:
        """The reference to the artifact."""
        return Artifact(self.uri, self.kind, self.fingerprint)


def note_report(
    store: ArtifactStore,
    model_name: str,
    artifact: Artifact,
    versions: Sequence[int],
    end: str | None,
    producer: Producer,
) -> None:
    """Lists an artifact, in the place of an earlier one of the same task instance.

    Args:
        store: The artifact store.
        model_name: The model.
        artifact: The ``skew`` or ``performance`` artifact.
        versions: The versions that it is of.
        end: End of its data, ISO 8601; None if that is not known.
        producer: The task instance.
    """
    made = MonitoringReport(artifact.uri, artifact.kind, artifact.fingerprint, now())
    own = f"@{producer.dag_id}@{hashlib.sha256(artifact.uri.encode()).hexdigest()[:16]}.json"
    for version in versions:
        folder = _folder(store, model_name, version, artifact.kind)
        name = f"{sortable(end or made.at)}@{sortable(made.at)}{own}"
        store.write_text(f"{folder}/{name}", json.dumps(made.to_dict()) + "\n")
        of_dag = [
            each for each in listed_reports(store, model_name, version, artifact.kind) if each[0] == producer.dag_id
        ]
        replaced = {each for _, each in of_dag if each.endswith(own)} - {name}
        for old in replaced.union(each for _, each in of_dag[KEPT:]):
            store.remove_text(f"{folder}/{old}")


def listed_reports(store: ArtifactStore, model_name: str, version: int, kind: str) -> list[tuple[str, str]]:
    """The artifacts of a kind that are listed of a version, by DAG and name, that of the newest data first."""
    names = reversed(store.names(_folder(store, model_name, version, kind)))
    return [(name.split("@")[2], name) for name in names if name.count("@") == 3 and name.endswith(".json")]


def monitoring_reports(store: ArtifactStore, model_name: str, kind: str) -> Iterator[MonitoringReport]:
    """The artifacts of a kind that are listed of any version of a model, the one that was made last first.

    Raises:
        BadInput: a file is damaged, or names an artifact of another DAG.
    """
    versions = [int(name) for name in store.names(store.uri("_state", "monitored", model_name)) if name.isdigit()]
    listed = [
        (name.split("@")[1], version, name)
        for version in versions
        for _, name in listed_reports(store, model_name, version, kind)
    ]
    for _, version, name in sorted(listed, reverse=True):
        yield read_report(store, model_name, version, kind, name)


def read_report(store: ArtifactStore, model_name: str, version: int, kind: str, name: str) -> MonitoringReport:
    """Reads the report that is listed under a name.

    Raises:
        BadInput: the file is damaged, or names an artifact of another DAG.
        FileNotFoundError: it is gone.
    """
    uri = f"{_folder(store, model_name, version, kind)}/{name}"
    try:
        result = MonitoringReport.from_dict(store.read_json(uri))
    except TypeError as error:
        raise BadInput(f"{uri}: not a comparison or a measurement ({error}); remove it") from error
    if store.dag_of(result.uri) != name.split("@")[2]:
        raise BadInput(f"{uri}: names an artifact of another DAG; remove it")
    return result


def _folder(store: ArtifactStore, model_name: str, version: int, kind: str) -> str:
    return store.uri("_state", "monitored", model_name, str(version), kind)
