"""The sources of a model card: everything in the store about a model's version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from airflow_hops.core.artifacts.artifact import Artifact, Manifest, Producer
from airflow_hops.core.artifacts.properties import BlessingProperties, DeploymentProperties, ModelProperties
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.evaluation import REPORT_FILE, EvaluationReport
from airflow_hops.core.models.model_record import ModelEvent, ModelRecord, read_record
from airflow_hops.core.steps.run_record import RunRecord, record_key
from airflow_hops.core.steps.run_record import read_record as read_run_record
from airflow_hops.core.store import ArtifactStore

_T = TypeVar("_T")

_UNREADABLE = (HopsError, OSError, TypeError, ValueError, KeyError, AttributeError)
"""Errors of missing or damaged files, and of files by other programs or versions."""


@dataclass
class VersionSources:
    """The sources of a version's card. Unreadable parts are noted and left out.

    Attributes:
        notes: Missing parts, in sentences.
        dags: DAGs that the card tells of.
    """

    store: ArtifactStore
    name: str
    version: int
    notes: list[str] = field(default_factory=list)
    dags: set[str] = field(default_factory=set)

    def mention(self, *uris: str | None) -> None:
        """Adds the DAGs that made artifacts at these addresses to ``dags``."""
        self.dags |= {self.store.dag_of(uri) for uri in uris if uri} - {""}

    @cached_property
    def record(self) -> ModelRecord:
        """The model's record."""
        record = read_record(self.store, self.name)
        self.dags |= {event.made_by["dag_id"] for event in record.history if event.made_by.get("dag_id")}
        return record

    @cached_property
    def registered(self) -> ModelEvent | None:
        """The event by which the version first came to serve."""
        return self.record.registered().get(self.version)

    @cached_property
    def maker(self) -> Mapping[str, Any]:
        """``dag_id``, ``run_id`` and, if known, ``task_id`` that deployed or registered it; empty if unknown."""
        began = self.record.began(self.version)
        by = began.made_by if began else {}
        if not by.get("run_id") or not by.get("dag_id"):
            self.notes.append("The run that deployed it is unknown.")
            return {}
        return by

    @cached_property
    def deployment(self) -> Manifest | None:
        """Manifest of the deployment, whose inputs are model, evaluation and infra-validation."""
        if "task_id" not in self.maker:
            return None
        producer = Producer(**self.maker)
        uri = self.store.address(producer, "deployment")
        opened = self._open(Artifact(uri, "deployment", ""), "Its deployment", DeploymentProperties.of)
        if opened is None:
            return None
        properties, manifest = opened
        if (properties.model_name, properties.version) != (self.name, self.version):
            self.notes.append(
                f"Its deployment was replaced by that of version {properties.version}: its task ran again."
            )
            return None
        return manifest

    @cached_property
    def model(self) -> tuple[ModelProperties, Manifest] | None:
        """Properties and manifest of the model artifact."""
        serving, first = self.record.served(self.version), self.registered
        if serving:
            artifact = serving.model
        elif values := self._given("model"):
            artifact = values
        else:
            artifact = Artifact((first and first.model) or "", "model", (first and first.fingerprint) or "")
        if not artifact.uri:
            self.notes.append("Its artifact is unknown: features, data and lineage are left out.")
            return None
        return self._open(artifact, "The model's artifact", ModelProperties.of)

    @cached_property
    def evaluation(self) -> EvaluationReport | None:
        """Evaluation that it was deployed with."""
        values = self._given("evaluation")
        if values is None:
            self.notes.append("No evaluation: its deployment was given none.")
            return None
        return self._read("Its evaluation", lambda: self._json(values, REPORT_FILE, EvaluationReport.from_dict))

    @cached_property
    def infra_blessing(self) -> BlessingProperties | None:
        """Result of loading it on a server before deployment."""
        values = self._given("infra_blessing")
        opened = self._open(values, "Its infra-validation", BlessingProperties.of) if values else None
        return opened[0] if opened else None

    @cached_property
    def lineage(self) -> list[tuple[str, str, str, str]]:
        """Sources of the model: role, kind, address, fingerprint."""
        inputs = self.model[1].inputs if self.model else {}
        values = [(role, each) for role, items in inputs.items() for each in items]
        self.mention(*(value.uri for _, value in values))
        return [(role, value.kind, value.uri, value.fingerprint) for role, value in values]

    @cached_property
    def statistics(self) -> Mapping[str, Mapping[str, Any]]:
        """Statistics of its training data, by split."""
        properties = self.model[0] if self.model else ModelProperties()
        if not properties.statistics:
            return {}
        artifact = Artifact(properties.statistics, "statistics", properties.statistics_fingerprint or "")
        opened = self._open(artifact, "Its statistics", lambda manifest: manifest.files)
        files = [entry.path for entry in opened[0] if entry.path.endswith("/statistics.json")] if opened else []
        results = {
            path.partition("/")[0]: self._read(path, lambda path=path: self._json(artifact, path, dict))  # type: ignore[misc]
            for path in sorted(files)
        }
        return {split: report for split, report in results.items() if report is not None}

    @cached_property
    def run_record(self) -> RunRecord | None:
        """Code, parameters and packages of its training."""
        if self.model is None:
            return None
        manifest = self.model[1]
        key, dag_id = record_key(manifest.cache_key_parts, manifest.inputs), manifest.producer.dag_id
        return self._read("The record of its training", lambda: read_run_record(self.store, dag_id, key))

    def _given(self, role: str) -> Artifact | None:
        values = self.deployment.inputs.get(role) if self.deployment else None
        return values[0] if values else None

    def _read(self, what: str, read: Callable[[], _T]) -> _T | None:
        """Returns the result of a reader; adds a note and returns None if it fails."""
        try:
            return read()
        except _UNREADABLE as error:
            self.notes.append(f"{what} cannot be read: {_describe(error)}.")
            return None

    def _open(self, artifact: Artifact, what: str, parse: Callable[[Manifest], _T]) -> tuple[_T, Manifest] | None:
        """Returns a value of an artifact's manifest, and the manifest; adds a note and returns None on failure."""

        def read() -> tuple[_T, Manifest]:
            _, manifest = self._find(artifact)
            return parse(manifest), manifest

        return self._read(what, read)

    def _find(self, artifact: Artifact) -> tuple[Artifact, Manifest]:
        """Returns an artifact with its manifest; whichever is at its address if the fingerprint is unknown.

        Raises:
            BadInput: it is in no DAG's folder of the store, so that nobody's rights cover it.
        """
        if not self.store.dag_of(artifact.uri):
            raise BadInput(f"{artifact.uri} is not an artifact of a DAG in this store")
        self.mention(artifact.uri)
        return self.store.find(artifact) if artifact.fingerprint else (artifact, self.store.manifest(artifact.uri))

    def _json(self, artifact: Artifact, path: str, parse: Callable[[Any], _T]) -> _T:
        there, _ = self._find(artifact)
        return parse(self.store.read_json(self.store.file(there.uri, path)))


def _describe(error: Exception) -> str:
    """Describes an error; includes its type for files by other programs or versions."""
    return str(error) if isinstance(error, HopsError | OSError) else f"{type(error).__name__}: {error}"
