"""The evaluation of a version, compared with the champion at the time, overall and by slice."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi.params import Path as PathParameter

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.evaluation import REPORT_FILE, EvaluationReport
from airflow_hops.web.access import READS_ARTIFACTS, MayRead
from airflow_hops.web.artifacts.lookup import FoundArtifact
from airflow_hops.web.artifacts.routes import ArtifactAddress, returned_address
from airflow_hops.web.artifacts.tasks import returned_by_runs
from airflow_hops.web.models.records import Served, external_endpoint, is_evaluation_of, read_model_record
from airflow_hops.web.models.routes import judged, made_by
from airflow_hops.web.types import Model

router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}/versions/{version}", tags=["models"])


class Evaluation(Model):
    """The evaluation that decided whether a version was blessed."""

    artifact: ArtifactAddress
    report: EvaluationReport


class VersionEvaluation(Model):
    """The evaluation of a version, or why there is none."""

    evaluation: Evaluation | None
    missing: str | None = None


@router.get("/evaluation", dependencies=[READS_ARTIFACTS])
def get_version_evaluation(
    user: GetUserDep, served: Served, version: Annotated[int, PathParameter(ge=1)]
) -> VersionEvaluation:
    """Returns the evaluation of a version by the run that made it; of one that a person put there, its newest one."""
    record = read_model_record(served.hook.store, served.name)
    known = record.served(version) or record.registered().get(version)
    fingerprint = known.fingerprint if known else None
    maker = made_by(record, version, MayRead(user, DagAccessEntity.XCOM))
    with create_session() as session:
        if maker is not None:
            returned = returned_by_runs(session, maker.dag_id, [maker.run_id])
        elif record.began(version) is None and fingerprint is not None:
            returned = judged(session, user, [served.model])[served.model]
        else:
            return _missing(f"Which run made version {version} of model {served.name!r} is not known")
    evaluations = [each for each in returned if each.artifact.kind == "evaluation"]
    if fingerprint is not None:
        evaluations = [each for each in evaluations if is_evaluation_of(each.artifact, fingerprint)][:1]
    if not evaluations and external_endpoint(record) is not None:
        return _missing(f"Version {version} of model {served.name!r} was adopted, not evaluated here")
    if len(evaluations) != 1:  # if the model is unknown, the run must have only one evaluation
        by = f"Run {maker.run_id!r} of DAG {maker.dag_id!r}" if maker else "No recent run"
        return _missing(f"{by} evaluated {'no ' if maker else ''}version {version} of model {served.name!r}")
    artifact = FoundArtifact.open(served.hook, evaluations[0].artifact)
    return VersionEvaluation(evaluation=read_evaluation(artifact, returned_address(evaluations[0])))


def _missing(why: str) -> VersionEvaluation:
    return VersionEvaluation(evaluation=None, missing=why)


def read_evaluation(artifact: FoundArtifact, address: ArtifactAddress) -> Evaluation:
    """Reads the evaluation of an artifact."""
    report = EvaluationReport.from_dict(artifact.read_json(REPORT_FILE))
    return Evaluation(artifact=address, report=report.to_dict())  # type: ignore[arg-type]  # checked by its fields' types
