"""What serves: the record of a model, ``<store>/_models/<model>.json``, which deployments and rollouts write."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from airflow.models.xcom import XCOM_RETURN_KEY, XComModel
from fastapi import HTTPException
from sqlalchemy.orm import Session

from airflow_hops.api.caching import ByteCache
from airflow_hops.api.definitions import PipelineDag
from airflow_hops.api.lookup import artifact_in, hook_of, open_artifact, reaching
from airflow_hops.api.types import Model, Number, Time
from airflow_hops.artifacts import Artifact, BadInput
from airflow_hops.store import ArtifactStore

_READERS = 8
"""Threads that read records: a store far away takes its time for each."""
_metrics = ByteCache(1 << 20)


class ServedVersion(Model):
    """A version that takes traffic."""

    version: int
    since: Time
    traffic_percent: int
    fingerprint: str
    """Of its model artifact."""


class HeadlineMetric(Model):
    """The metric by which champion and candidate are compared, of the champion, on the first split."""

    name: str
    split: str
    value: Number
    compared_with: int | None
    """The version that was champion when it was evaluated; null where there was none."""
    difference: Number
    """To that version, on the same rows, with its 95% interval."""
    low: Number
    high: Number


class ServedModel(Model):
    """The model that a pipeline trains, and what of it serves."""

    name: str
    champion: ServedVersion | None
    challenger: ServedVersion | None
    metric: HeadlineMetric | None
    problem: str | None
    """Why the rest is not known: the store cannot be read."""


@dataclass(frozen=True)
class ModelRecord:
    """The record as it lies in the store (:class:`airflow_hops.runtime.model_record.ModelRecord` writes it).

    Attributes:
        champion: The version that serves; None before the first.
        challenger: The version that is tried as a canary, or None.
        history: Events, oldest first: ``at``, ``event``, ``version``, ``why``, ``by`` and numbers.
    """

    champion: Mapping[str, Any] | None = None
    challenger: Mapping[str, Any] | None = None
    history: tuple[Mapping[str, Any], ...] = ()

    def served(self) -> tuple[ServedVersion | None, ServedVersion | None]:
        """Champion and challenger with the shares that were decided for them."""
        champion, challenger = self.champion, self.challenger
        if champion is None:
            return None, None
        share = int(challenger["traffic_percent"]) if challenger else 0
        return _served(champion, 100 - share), _served(challenger, share) if challenger else None

    def began(self, version: int) -> Mapping[str, Any] | None:
        """The newest event by which a version came to serve, as champion or as a canary; None if it is not recorded."""
        events = (e for e in reversed(self.history) if e["version"] == version and e["event"] in ("deployed", "canary"))
        return next(events, None)


def read_model_record(store: ArtifactStore, model_name: str) -> ModelRecord:
    """The record of a model; an empty one where there is none.

    Raises:
        HTTPException: 502, the store cannot be read, or the file is not a record.
    """
    with reaching(store):
        try:
            uri = store.uri("_models", f"{model_name}.json")
            value = json.loads(store.read_text(uri))
        except FileNotFoundError:
            return ModelRecord()
        except ValueError as error:
            raise BadInput(f"{uri}: not a model record ({error})") from error
        if not isinstance(value, Mapping):
            raise HTTPException(502, f"{uri}: not a model record")
    return ModelRecord(value.get("champion"), value.get("challenger"), tuple(value.get("history") or ()))


def served_models(
    session: Session, pipelines: Sequence[PipelineDag], readable: Container[str]
) -> dict[str, ServedModel]:
    """The first model of each pipeline that has one, and what of it serves, by DAG.

    Args:
        session: Of Airflow's database.
        pipelines: The pipelines.
        readable: DAGs that the user may read; figures that others made are left out.
    """
    named = {pipeline.dag_id: pipeline.models()[0] for pipeline in pipelines if pipeline.models()}
    models = sorted(set(named.values()))
    with ThreadPoolExecutor(_READERS) as readers:
        read = dict(zip(models, readers.map(_read, models), strict=True))
        evaluated = {
            model: (found[0], _evaluation(session, found[1], readable))
            for model, found in read.items()
            if not isinstance(found, HTTPException)
        }
        metrics = dict(zip(evaluated, readers.map(_metric_of, evaluated.values()), strict=True))
    return {dag_id: _served_model(model[1], read[model], metrics.get(model)) for dag_id, model in named.items()}


def _read(model: tuple[str, str]) -> tuple[ArtifactStore, ModelRecord] | HTTPException:
    conn_id, model_name = model
    try:
        store = hook_of(conn_id).store
        return store, read_model_record(store, model_name)
    except HTTPException as error:
        return error


def _served_model(
    name: str, read: tuple[ArtifactStore, ModelRecord] | HTTPException, metric: HeadlineMetric | None
) -> ServedModel:
    if isinstance(read, HTTPException):
        return ServedModel(name=name, champion=None, challenger=None, metric=None, problem=str(read.detail))
    champion, challenger = read[1].served()
    return ServedModel(name=name, champion=champion, challenger=challenger, metric=metric, problem=None)


def headline_of(
    session: Session, store: ArtifactStore, record: ModelRecord, readable: Container[str]
) -> HeadlineMetric | None:
    """The champion's metric, from the evaluation that its own run made of it.

    Args:
        session: Of Airflow's database.
        store: Where the evaluation lies.
        record: The model's record.
        readable: DAGs that the user may read.

    Returns:
        None where there is no champion, or no evaluation of it that the user may read.
    """
    return _metric_of((store, _evaluation(session, record, readable)))


def _evaluation(session: Session, record: ModelRecord, readable: Container[str]) -> Artifact | None:
    began = record.began(record.champion["version"]) if record.champion else None
    by = (began or {}).get("by") or {}
    if record.champion is None or by.get("dag_id") not in readable:
        return None
    rows = session.scalars(XComModel.get_many(run_id=by["run_id"], key=XCOM_RETURN_KEY, dag_ids=by["dag_id"]))
    for artifact in filter(None, map(artifact_in, rows)):
        candidate = artifact.properties.get("candidate") or {}
        if artifact.kind == "evaluation" and candidate.get("fingerprint") == record.champion["fingerprint"]:
            return artifact
    return None


def _metric_of(evaluated: tuple[ArtifactStore, Artifact | None]) -> HeadlineMetric | None:
    store, evaluation = evaluated
    if evaluation is None:
        return None
    try:
        content = _metrics.get(evaluation.fingerprint, lambda: _read_metric(store, evaluation))
    except (HTTPException, FileNotFoundError, ValueError):
        return None
    return HeadlineMetric.model_validate_json(content)


def _read_metric(store: ArtifactStore, evaluation: Artifact) -> bytes:
    there, _ = open_artifact(store, evaluation)
    with reaching(store):
        figures = json.loads(store.read_text(f"{there.uri}/evaluation.json"))
    name, (split, found) = figures["rule"]["metric"], next(iter(figures["splits"].items()))
    gain = found.get("gain") or {}
    metric = HeadlineMetric(
        name=name,
        split=split,
        value=found["candidate"].get(name),
        compared_with=(figures.get("champion") or {}).get("version"),
        difference=gain.get("difference"),
        low=gain.get("low"),
        high=gain.get("high"),
    )
    return metric.model_dump_json().encode()


def _served(version: Mapping[str, Any], traffic_percent: int) -> ServedVersion:
    return ServedVersion(
        version=version["version"],
        since=version["since"],
        traffic_percent=traffic_percent,
        fingerprint=version["fingerprint"],
    )
