"""Models of routes, their records, their serving versions, and the decisions behind those."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any

from fastapi import Depends, HTTPException
from fastapi.params import Path as PathParameter
from sqlalchemy.orm import Session

from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ENDPOINT, ModelProperties
from airflow_hops.core.evaluation import REPORT_FILE, Difference, EvaluationProperties, EvaluationReport
from airflow_hops.core.models.model_record import ModelRecord, read_record, record_uri
from airflow_hops.core.rollout.decision import CanaryFinding
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.web.artifacts.lookup import hook_of, open_artifact, pipeline_of, reaching
from airflow_hops.web.artifacts.tasks import PipelineModel, last_returned, read_pipelines, returned_by_dag_runs
from airflow_hops.web.types import Model, Number, Time
from airflow_hops.web.unusable_files import reading_threads

VERDICTS = 50
"""Number of verdicts per evaluating task that are searched for candidates."""


class VersionShare(Model):
    """A version that gets traffic."""

    version: int
    since: Time
    traffic_percent: int
    fingerprint: str
    """Fingerprint of the model artifact."""


class HeadlineMetric(Model):
    """The champion's value of the metric that compares champion and candidate, on the first split."""

    name: str
    split: str
    value: Number
    compared_with: int | None
    """Champion version at the time of the evaluation; null if there was none."""
    gain: Difference | None
    """Difference from that version on the same rows, with its 95% interval."""


class ServedModel(Model):
    """The model that a pipeline trains, and its serving versions."""

    name: str
    champion: VersionShare | None
    challenger: VersionShare | None
    metric: HeadlineMetric | None
    problem: str | None
    """Reason why the other fields are unknown: the store cannot be read."""
    unmeasured: str | None = None
    """Reason why the metric is unknown, although the champion was evaluated."""


def read_model_record(store: ArtifactStore, model_name: str) -> ModelRecord:
    """Reads the record of a model; an empty one if there is none.

    Raises:
        HTTPException: 502, the store cannot be read, or the file is not a record.
    """
    with reaching(store, record_uri(store, model_name)):
        record = read_record(store, model_name)
        shares_of(record)  # checks numbers and times of what serves
        return record


def external_endpoint(record: ModelRecord) -> str | None:
    """Returns the address of the endpoint that serves an adopted model; None once a version was deployed from here."""
    champion = record.champion
    if champion is None or record.versions() != [champion.version]:
        return None
    return champion.serving_path if ModelProperties.of(champion.model).format == ENDPOINT else None


def shares_of(record: ModelRecord) -> tuple[VersionShare | None, VersionShare | None]:
    """Returns champion and challenger with their decided shares."""
    champion, challenger = (
        None if version is None else VersionShare.of(version, traffic_percent=record.traffic.get(version.version, 0))
        for version in (record.champion, record.challenger)
    )
    return champion, challenger if champion else None


def served_models(
    session: Session, models: Iterable[PipelineModel], readable: Container[str]
) -> dict[PipelineModel, tuple[ServedModel, ModelRecord]]:
    """Returns the serving versions of models with their records, which are empty if the store cannot be read.

    Metrics by DAGs that are not ``readable`` are left out.
    """
    models = sorted(set(models))
    hook = cache(hook_of)  # reading a connection takes longer than reading a record
    with reading_threads() as readers:
        read = list(readers.map(lambda model: _read(hook, *model), models))
        evaluations = _evaluations(session, [record for _, record, _ in read], readable)
        metrics = list(readers.map(_metric_of, (store for store, *_ in read), evaluations))
    results = {}
    for model, (_, record, problem), (metric, unmeasured) in zip(models, read, metrics, strict=True):
        champion, challenger = shares_of(record)
        shares = {"champion": champion, "challenger": challenger}
        served = ServedModel(name=model.name, metric=metric, problem=problem, unmeasured=unmeasured, **shares)
        results[model] = served, record
    return results


def _read(
    hook: Callable[[str], RuntimeHook], conn_id: str, model_name: str
) -> tuple[ArtifactStore | None, ModelRecord, str | None]:
    try:
        store = hook(conn_id).store
        return store, read_model_record(store, model_name), None
    except HTTPException as error:
        return None, ModelRecord(), str(error.detail)


def _evaluations(session: Session, records: Sequence[ModelRecord], readable: Container[str]) -> list[Artifact | None]:
    """Returns the evaluation of each champion by the run that made it, if the user may read it.

    Of a champion that a person put there, it is the newest one.
    """
    runs: dict[str, tuple[str, str]] = {}
    replaced = [record for record in records if record.champion and record.began(record.champion.version) is None]
    evaluated = []
    if replaced:
        evaluating = [dag_id for dag_id in read_pipelines(session) if dag_id in readable]
        evaluated = last_returned(session, evaluating, "evaluation", last=VERDICTS)
    for record in records:
        began = record.began(record.champion.version) if record.champion else None
        if record.champion and began is not None and began.made_by.get("dag_id") in readable:
            runs[record.champion.fingerprint] = began.made_by["dag_id"], began.made_by["run_id"]
    returned = returned_by_dag_runs(session, set(runs.values()))
    evaluations = {
        champion: next((each.artifact for each in returned[run] if is_evaluation_of(each.artifact, champion)), None)
        for champion, run in runs.items()
    }
    for record in replaced:
        if record.champion:
            artifacts = (
                each.artifact for each in evaluated if is_evaluation_of(each.artifact, record.champion.fingerprint)
            )
            evaluations[record.champion.fingerprint] = next(artifacts, None)
    return [evaluations.get(record.champion.fingerprint) if record.champion else None for record in records]


def is_evaluation_of(artifact: Artifact, fingerprint: str) -> bool:
    """Returns whether an artifact is the evaluation of a model artifact."""
    return artifact.kind == "evaluation" and EvaluationProperties.of(artifact).candidate.fingerprint == fingerprint


def _metric_of(store: ArtifactStore | None, evaluation: Artifact | None) -> tuple[HeadlineMetric | None, str | None]:
    """Returns the metric of an evaluation, or why it is unknown; neither if there is no evaluation."""
    if store is None or evaluation is None:
        return None, None
    try:
        there, _ = open_artifact(store, evaluation)
        with reaching(store, uri := f"{there.uri}/{REPORT_FILE}"):
            report = EvaluationReport.from_dict(store.read_json(uri))
            split, figures = next(iter(report.splits.items()))
            metric = HeadlineMetric(
                name=report.metric,
                split=split,
                value=figures.candidate.get(report.metric),
                compared_with=report.champion.version if report.champion else None,
                gain=figures.gain,
            )
    except HTTPException as error:
        return None, str(error.detail)
    return metric, None


class DecidedBy(Model):
    """Person or task that decided; empty for a DAG that the user may not read."""

    user: str | None
    dag_id: str | None
    run_id: str | None
    task_id: str | None
    map_index: int | None
    iteration: int | None


class AskedCounts(Model):
    """Requests to a version."""

    requests: int = 0
    errors: int = 0
    client_errors: int = 0
    """Requests refused as the client's mistake."""
    latency_ms_p50: Number = None
    latency_ms_p99: Number = None


class Decision(Model):
    """An event in a model's history."""

    at: Time
    event: str
    """``deployed``, ``canary``, ``step``, ``approved``, ``traffic``, ``promoted``, ``rolled_back``, ``left``,
    ``undeployed``, ``owners``."""
    version: int
    why: str
    by: DecidedBy | None
    to: int | None = None
    """Version that a rollback restored."""
    traffic: dict[str, int] | None = None
    """Decided shares in percent, by version."""
    reasons: list[str] = []
    percent: int | None = None
    """Share of the canary when it was judged."""
    watched_s: Number = None
    canary: AskedCounts | None = None
    stable: AskedCounts | None = None
    findings: list[CanaryFinding] = []


class Rollout(Model):
    """A canary under evaluation."""

    version: int
    steps: int
    """Planned number of steps."""
    number: int
    """Number of the current step, from 1."""
    percent: int
    since: Time
    """Start of the current step."""
    canary: AskedCounts
    """Requests in the current step."""
    stable: AskedCounts
    doubts: list[str]
    waits_for_approval: bool


def decisions_of(record: ModelRecord, readable: Container[str]) -> list[Decision]:
    """Returns the history, newest first; decisions by DAGs that are not ``readable`` have no author."""
    # Fields added by a newer version may clash with names of ours.
    events = [replace(event, more={}) for event in reversed(record.history)]
    return [Decision(**{**event.to_dict(), "by": _by(event.by, readable)}) for event in events]


def rollout_of(record: ModelRecord) -> Rollout | None:
    """Returns the rollout in progress, or None."""
    challenger, champion = record.challenger, record.champion
    progress = challenger.rollout if challenger else None
    if challenger is None or champion is None or progress is None:
        return None
    return Rollout.of(
        progress,
        version=challenger.version,
        canary=progress.counts(challenger.version).to_dict(),
        stable=progress.counts(champion.version).to_dict(),
        waits_for_approval=progress.passed is not None and not progress.approval,
    )


def _by(by: Mapping[str, Any] | str | None, readable: Container[str]) -> DecidedBy | None:
    if by is None:
        return None
    known: Mapping[str, Any] = {"user": by} if isinstance(by, str) else by
    if "dag_id" in known and known["dag_id"] not in readable:
        known = {}
    return DecidedBy(**{name: known.get(name) for name in DecidedBy.model_fields})


ModelName = Annotated[
    str, PathParameter(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=220, description="The model's name")
]


@dataclass(frozen=True)
class ServedModelOf:
    """A model that a pipeline trains, deploys or monitors.

    Attributes:
        name: Name in MLflow's registry and on the server.
        hops_conn_id: Connection with the store, MLflow and the model server.
        is_decided_here: Whether the pipeline deploys the model or decides on its serving; others watch or use it.
    """

    dag_id: str
    name: str
    hops_conn_id: str
    is_decided_here: bool

    @property
    def model(self) -> PipelineModel:
        """The model as pipelines name it."""
        return PipelineModel(self.hops_conn_id, self.name)

    @property
    def hook(self) -> RuntimeHook:
        """Hook with the model's store and MLflow."""
        return hook_of(self.hops_conn_id)


def find_model(dag_id: str, model: ModelName) -> ServedModelOf:
    """Returns the model of a pipeline. It checks no access: the route does.

    Raises:
        HTTPException: 404, the pipeline or its model does not exist.
    """
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
    models = pipeline.models()
    for hops_conn_id, name in models:
        if name == model:
            return ServedModelOf(dag_id, name, hops_conn_id, pipeline.decides_on(name))
    names = ", ".join(repr(name) for _, name in models)
    raise HTTPException(404, f"DAG {dag_id!r} serves no model {model!r}; it works on {names or 'none'}")


Served = Annotated[ServedModelOf, Depends(find_model)]
"""Model of a route below ``/dags/{dag_id}/models/{model}``."""


def _find_decided(served: Served) -> ServedModelOf:
    """Returns the model of a route that changes it.

    Raises:
        HTTPException: 403, the pipeline does not deploy the model, or the model belongs to another.
    """
    if not served.is_decided_here:
        raise HTTPException(403, f"DAG {served.dag_id!r} does not deploy model {served.name!r}")
    if not read_model_record(served.hook.store, served.name).is_owned_by(served.dag_id):
        raise HTTPException(403, f"DAG {served.dag_id!r} does not own model {served.name!r}")
    return served


Decided = Annotated[ServedModelOf, Depends(_find_decided)]
