"""The evaluation of a version, compared with the champion at the time, overall and by slice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException
from fastapi.params import Path as PathParameter

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.contract.evaluation import REPORT_FILE, EvaluationReport, LabelReport
from airflow_hops.web.access import READS_ARTIFACTS, MayRead
from airflow_hops.web.artifacts.lookup import FoundArtifact
from airflow_hops.web.artifacts.routes import ArtifactAddress, returned_address
from airflow_hops.web.artifacts.tasks import returned_by_runs
from airflow_hops.web.models.records import Served, is_evaluation_of, read_model_record, registered_versions
from airflow_hops.web.models.routes import made_by
from airflow_hops.web.types import Json, Model, Number

router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}/versions/{version}", tags=["models"])


class Gain(Model):
    """Improvement of the candidate over the champion on the same rows, with its 95% interval; positive is better."""

    metric: str
    difference: Number
    low: Number
    high: Number


class SliceFigures(Model):
    """Metrics of some rows; also by class for multiclass models."""

    rows: int
    candidate: dict[str, Json]
    champion: dict[str, Json] | None
    """Metrics of the champion at the time on the same rows; null if there was none."""
    gain: Gain | None


class Slice(SliceFigures):
    """Metrics of the rows in which a feature has a value."""

    value: Json


class SplitEvaluation(SliceFigures):
    """Metrics of a split."""

    name: str
    slices: dict[str, list[Slice]]
    """Slices by feature."""


class LabelEvaluation(Model):
    """The evaluation of a label."""

    metric: str
    """Metric by which candidate and champion are compared."""
    problem: str | None
    """Binary, multiclass or regression; null in evaluations of earlier versions."""
    label: str | None
    """Name of the label column, whose unit a regression's metrics have."""
    rule: dict[str, Json]
    splits: list[SplitEvaluation]


class Evaluation(LabelEvaluation):
    """The evaluation that decided whether a version was blessed."""

    artifact: ArtifactAddress
    blessed: bool
    reasons: list[str]
    champion_version: int | None
    """Champion at the time; null if there was none."""
    more_labels: list[LabelEvaluation]
    """Evaluations of the model's further labels."""


@router.get("/evaluation", dependencies=[READS_ARTIFACTS])
def get_version_evaluation(
    user: GetUserDep, served: Served, version: Annotated[int, PathParameter(ge=1)]
) -> Evaluation:
    """Returns the evaluation of a version by the run that made it."""
    record = read_model_record(served.hook.store, served.name)
    serving = record.served(version)
    tags: Mapping[str, str] = {}
    if serving is None:
        registered, problem = registered_versions(served)
        if problem is not None:
            raise HTTPException(502, problem)
        tags = registered.get(version, {}).get("tags", {})
    maker = made_by(record, version, tags, MayRead(user, DagAccessEntity.XCOM))
    if maker is None:
        raise HTTPException(404, f"which run made version {version} of model {served.name!r} is not known")
    with create_session() as session:
        returned = returned_by_runs(session, maker.dag_id, [maker.run_id])
    evaluations = [each for each in returned if each.artifact.kind == "evaluation"]
    fingerprint = serving.fingerprint if serving else tags.get("hops.fingerprint")
    if fingerprint is not None:
        evaluations = [each for each in evaluations if is_evaluation_of(each.artifact, fingerprint)][:1]
    if len(evaluations) != 1:  # if the model is unknown, the run must have only one evaluation
        raise HTTPException(404, f"run {maker.run_id!r} of DAG {maker.dag_id!r} evaluated no version {version}")
    artifact = FoundArtifact.open(served.hook, evaluations[0].artifact)
    return read_evaluation(artifact, returned_address(evaluations[0]))


def read_evaluation(artifact: FoundArtifact, address: ArtifactAddress) -> Evaluation:
    """Reads the evaluation of an artifact."""
    report = EvaluationReport.from_dict(artifact.read_json(REPORT_FILE))
    more = [_evaluation_of(of, label) for label, of in (report.more_labels or {}).items()]
    return Evaluation(
        **_evaluation_of(report, report.label),
        artifact=address,
        blessed=report.blessed,
        reasons=list(report.reasons or ()),
        champion_version=report.champion.version if report.champion else None,
        more_labels=more,  # type: ignore[arg-type]  # checked by their fields' types
    )


def _evaluation_of(of: EvaluationReport | LabelReport, label: str | None) -> dict[str, Any]:
    splits = [SplitEvaluation(name=name, **figures.to_dict()) for name, figures in of.splits.items()]
    return {"metric": of.rule["metric"], "problem": of.problem, "label": label, "rule": of.rule, "splits": splits}
