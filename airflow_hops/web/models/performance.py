"""Performance of a model's served versions, based on the labels received so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.contract.performance import (
    REPORT_FILE,
    Interval,
    PerformanceProperties,
    PerformanceReport,
    VersionPerformance,
)
from airflow_hops.web.access import READS_ARTIFACTS, MayRead, ReadableDags
from airflow_hops.web.artifacts.lookup import FoundArtifact
from airflow_hops.web.artifacts.routes import ArtifactAddress, returned_address
from airflow_hops.web.artifacts.tasks import last_returned, read_pipelines, together
from airflow_hops.web.models.records import Served
from airflow_hops.web.types import Model, Number, Time

router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}", tags=["models"])


class Figure(Model):
    """A metric with its 95% interval."""

    value: Number
    low: Number
    high: Number


class VersionFigures(Model):
    """Predictions of a version in a period."""

    version: int
    start: Time
    end: Time
    rows: int
    labelled: int
    measured: int
    """Predictions with labels that are old enough."""
    figures: dict[str, Figure]
    """Metrics measured with labels; empty if there are too few."""
    estimates: dict[str, Figure]
    """Metrics estimated without labels."""
    baseline: dict[str, Figure]
    """Metrics on the held-out split of the version's training; only for whole windows."""
    drop: dict[str, Figure]
    """Deterioration against the baseline; above 0 is worse. Only for whole windows."""


class LabelCompleteness(Model):
    """Predictions of an age range, and how many of them have labels."""

    from_s: float
    to_s: float | None
    rows: int
    labelled: int


class LivePerformance(Model):
    """The newest measurement of a model."""

    artifact: ArtifactAddress
    as_of: Time
    """End of the window."""
    problem: str
    label: str
    metric: str
    """First metric of the problem."""
    versions: list[VersionFigures]
    """Over the whole window."""
    periods: list[VersionFigures]
    ages: list[LabelCompleteness]
    labels: dict[str, int]
    """Label counts by outcome."""
    delay_s_p50: float | None
    """Median seconds from prediction to label; null if unknown."""
    delay_s_p95: float | None
    notes: list[str]
    """Notes on anything wrong or missing."""


class PerformanceAnswer(Model):
    """The newest measurement of a label; null if there is none."""

    performance: LivePerformance | None
    labels: list[str]
    """Measured labels, by name."""


@router.get("/performance", dependencies=[READS_ARTIFACTS])
def get_model_performance(
    user: GetUserDep,
    served: Served,
    readable: ReadableDags,
    label: Annotated[str | None, Query(max_length=512, description="The label; the first by name")] = None,
) -> PerformanceAnswer:
    """Returns the newest measurement of a model's served versions by any DAG that the user may read."""
    may_read = MayRead(user, DagAccessEntity.XCOM)
    with create_session() as session:
        pipelines = read_pipelines(session, list(readable)).values()
        watching = together(pipelines, [(served.hops_conn_id, served.name)])
        dag_ids = [each.dag_id for each in watching if each.dag_id in may_read]
        result = last_returned(session, dag_ids, "performance")
    of_model = [(PerformanceProperties.of(each.artifact), each) for each in result]
    by_label = [(of.label, each) for of, each in of_model if of.model_name == served.name]
    labels = sorted({name for name, _ in by_label})
    newest = next((each for name, each in by_label if name == (label or labels[0])), None)
    if newest is None:
        return PerformanceAnswer(performance=None, labels=labels)
    artifact = FoundArtifact.open(served.hook, newest.artifact)
    report = PerformanceReport.from_dict(artifact.read_json(REPORT_FILE))
    return PerformanceAnswer(
        labels=labels,
        performance=LivePerformance.of(
            report,
            artifact=returned_address(newest),
            versions=[_version(each) for each in report.versions],
            periods=[_version(each) for each in report.periods],
            labels=report.labels.to_dict(),
            delay_s_p50=report.delay_s[0] if report.delay_s else None,
            delay_s_p95=report.delay_s[1] if report.delay_s else None,
        ),
    )


def _version(of: VersionPerformance) -> VersionFigures:
    def by_metric(figures: Mapping[str, Interval] | None) -> dict[str, Figure]:
        return {name: Figure(value=v, low=low, high=high) for name, (v, low, high) in (figures or {}).items()}

    known = {"figures": of.figures, "estimates": of.estimates, "baseline": of.baseline, "drop": of.drop}
    return VersionFigures.of(of, **{name: by_metric(figures) for name, figures in known.items()})
