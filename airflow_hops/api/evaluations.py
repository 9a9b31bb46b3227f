"""What a version was worth when it was made: its evaluation, beside the champion's of then, overall and by slice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.utils.session import create_session
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.params import Path as PathParameter
from sqlalchemy.orm import Session

from airflow_hops.api.access import READS_ARTIFACTS
from airflow_hops.api.artifacts import ArtifactAddress, returned_address
from airflow_hops.api.caching import cached_answer
from airflow_hops.api.inspection import ask
from airflow_hops.api.lookup import FoundArtifact, open_artifact
from airflow_hops.api.model_records import read_model_record
from airflow_hops.api.models import MadeBy, made_by, readable_makers
from airflow_hops.api.returned import ReturnedArtifact, returned_by_runs
from airflow_hops.api.served import Served, ServedModelOf
from airflow_hops.api.types import Json, Model, Number

router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}/versions/{version}", tags=["models"])


class Gain(Model):
    """Candidate less champion, on the same rows, with its 95% interval."""

    metric: str
    difference: Number
    low: Number
    high: Number


class SliceFigures(Model):
    """Figures of some rows; of a model of several classes also by class."""

    rows: int
    candidate: dict[str, Json]
    champion: dict[str, Json] | None
    """Of the champion of then, on the same rows; null where there was none."""
    gain: Gain | None


class Slice(SliceFigures):
    """Figures of the rows in which a feature has a value."""

    value: Json


class SplitEvaluation(SliceFigures):
    """Figures of a split."""

    name: str
    slices: dict[str, list[Slice]]
    """By the feature that the rows are sliced by."""


class Evaluation(Model):
    """The evaluation on which a version was blessed, or not."""

    artifact: ArtifactAddress
    blessed: bool
    reasons: list[str]
    metric: str
    """By which the two are compared."""
    rule: dict[str, Json]
    champion_version: int | None
    """The champion of then; null where there was none."""
    splits: list[SplitEvaluation]


@router.get("/evaluation", dependencies=[READS_ARTIFACTS], response_model=Evaluation)
def get_version_evaluation(
    request: Request, user: GetUserDep, served: Served, version: Annotated[int, PathParameter(ge=1)]
) -> Response:
    """The evaluation of a version, by the run that made it."""
    record = read_model_record(served.hook.store, served.name)
    serving = next((each for each in (record.champion, record.challenger) if each and each["version"] == version), {})
    tags: Mapping[str, str] = {}
    if not serving:
        tags = _tags(served, version)
    maker = made_by(record, version, tags, readable_makers(user, record, [{"tags": tags}]))
    if maker is None:
        raise HTTPException(404, f"which run made version {version} of model {served.name!r} is not known")
    with create_session() as session:
        found = _evaluation(session, maker, serving.get("fingerprint") or tags.get("hops.fingerprint"))
    if found is None:
        raise HTTPException(404, f"run {maker.run_id!r} of DAG {maker.dag_id!r} evaluated no version {version}")
    artifact, manifest = open_artifact(served.hook.store, found.artifact)
    evaluation = FoundArtifact(served.hook, artifact, manifest)
    return cached_answer(
        request,
        (artifact.fingerprint, found.dag_id, found.run_id, found.task_id, found.map_index),
        lambda: _answer(evaluation.read_json("evaluation.json"), found),
    )


def _tags(served: ServedModelOf, version: int) -> Mapping[str, str]:
    """MLflow's tags of a version; none where it does not know it."""
    found = ask(served.hook, "registry/versions", {"model_name": served.name, "max_results": 1000})["versions"]
    return next((each["tags"] for each in found if each["version"] == version), {})


def _evaluation(session: Session, maker: MadeBy, fingerprint: str | None) -> ReturnedArtifact | None:
    """What a run says of a model; where the model is not known, of the only one that it evaluated."""
    returned = returned_by_runs(session, maker.dag_id, [maker.run_id])
    found = [each for each in returned if each.artifact.kind == "evaluation"]
    if fingerprint is None:
        return found[0] if len(found) == 1 else None
    return next(
        (e for e in found if e.artifact.properties.get("candidate", {}).get("fingerprint") == fingerprint), None
    )


def _answer(report: Mapping[str, Any], found: ReturnedArtifact) -> Evaluation:
    return Evaluation(
        artifact=returned_address(found),
        blessed=report["blessed"],
        reasons=report["reasons"],
        metric=report["rule"]["metric"],
        rule=report["rule"],
        champion_version=(report["champion"] or {}).get("version"),
        splits=[SplitEvaluation(name=name, **figures) for name, figures in report["splits"].items()],
    )
