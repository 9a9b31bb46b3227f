"""The state of a pipeline by its runs: the last training and its reason, the last skew checks."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator

from airflow.models.dagrun import DagRun
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session, selectinload

from airflow_hops.core.contract.skew import SkewProperties
from airflow_hops.web.artifacts.definitions import PipelineDag
from airflow_hops.web.artifacts.from_tasks import ReturnedArtifact, last_returned
from airflow_hops.web.artifacts.routes import ArtifactAddress, returned_address
from airflow_hops.web.types import Model, Number, Time, whole


class WorstFeature(Model):
    """The feature with the largest score relative to its threshold."""

    name: str
    score: Number
    threshold: Number


class SkewState(Model):
    """The last verdict of the pipeline's monitoring."""

    verdict: str
    version: int | None
    """The version whose training data the requests were compared with."""
    drifted: list[str]
    lost: list[str]
    worst: WorstFeature | None
    at: Time
    report: ArtifactAddress


class SkewPoint(Model):
    """A check of the pipeline's monitoring."""

    at: Time
    verdict: str
    worst: WorstFeature | None
    rows: int | None
    """Rows of requests that were compared."""


class LastRetraining(Model):
    """The last training, and its reason."""

    run_id: str
    at: Time
    run_type: str
    reason: str | None
    """Reason that the monitoring gave for it."""
    triggered_by: str | None
    """The user, where one did."""


def skew_state(pipeline: PipelineDag, reports: Iterable[ReturnedArtifact]) -> SkewState | None:
    """The newest verdict about one of the pipeline's models.

    Args:
        pipeline: The pipeline.
        reports: The last of each task that compares, the newest first.
    """
    for report in _about(pipeline, reports):
        of = SkewProperties.of(report.artifact)
        return SkewState.of(
            of,
            version=of.reference.version,
            worst=_worst(report),
            at=report.at,
            report=returned_address(report),
        )
    return None


def skew_points(pipeline: PipelineDag, reports: Iterable[ReturnedArtifact]) -> list[SkewPoint]:
    """The checks of the pipeline's models, oldest first.

    Args:
        pipeline: The pipeline.
        reports: Some of each task that compares, the newest first.
    """
    points = [
        SkewPoint(
            at=report.at,
            verdict=SkewProperties.of(report.artifact).verdict,
            worst=_worst(report),
            rows=whole(report.artifact.metrics.get("rows_current")),
        )
        for report in _about(pipeline, reports)
    ]
    return points[::-1]


def retrainings(session: Session, dag_ids: Collection[str], readable: Container[str]) -> dict[str, LastRetraining]:
    """The last training of each DAG that was not taken from the cache.

    Args:
        session: Of Airflow's database.
        dag_ids: The DAGs.
        readable: DAGs that the user may read; what others said when they asked for a training is left out.
    """
    newest: dict[str, ReturnedArtifact] = {}
    for model in last_returned(session, dag_ids, "model", last=5):
        if not model.artifact.cached:
            newest.setdefault(model.dag_id, model)
    made = tuple_(DagRun.dag_id, DagRun.run_id).in_([(model.dag_id, model.run_id) for model in newest.values()])
    runs = session.scalars(select(DagRun).where(made).options(selectinload(DagRun.consumed_asset_events)))
    results = {}
    for run in runs:
        extras = (event.extra or {} for event in run.consumed_asset_events if event.source_dag_id in readable)
        results[run.dag_id] = LastRetraining(
            run_id=run.run_id,
            at=newest[run.dag_id].at,
            run_type=str(run.run_type),
            reason=next((str(extra["reason"]) for extra in extras if extra.get("reason")), None),
            triggered_by=run.triggering_user_name,
        )
    return results


def _about(pipeline: PipelineDag, reports: Iterable[ReturnedArtifact]) -> Iterator[ReturnedArtifact]:
    names = {name for _, name in pipeline.models()}
    return (each for each in reports if SkewProperties.of(each.artifact).reference.model in names)


def _worst(report: ReturnedArtifact) -> WorstFeature | None:
    scores = SkewProperties.of(report.artifact).scores
    judged = {name: score / threshold for name, (score, threshold) in scores.items() if score and threshold}
    if not judged:
        return None
    name = max(judged, key=lambda each: judged[each])
    return WorstFeature(name=name, score=scores[name][0], threshold=scores[name][1])
