"""Candidates of a model: those that an evaluation refused, and all that may replace the champion."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep
from sqlalchemy.orm import Session

from airflow_hops.web.access import may_read
from airflow_hops.web.artifacts.definitions import definitions, together
from airflow_hops.web.artifacts.from_tasks import ReturnedArtifact, last_returned
from airflow_hops.web.artifacts.routes import ArtifactAddress, returned_address
from airflow_hops.web.runs.states import compared_models, verdict_against, why_refused
from airflow_hops.web.types import Model, Number, Time

_JUDGE = "evaluation"
VERDICTS = 50
"""Verdicts of each evaluating task among which candidates are looked for."""


class RefusedCandidate(Model):
    """A model that was trained, and was not deployed."""

    at: Time
    why: str
    judged: ArtifactAddress
    """The artifact that says so."""
    metrics: dict[str, Number]
    """Metrics of that artifact."""
    fingerprint: str
    """Fingerprint of the artifact; empty where a task of the user's own does not say."""
    champion_version: int | None
    """With which it was compared; null where it was not."""


class Candidate(Model):
    """A model that was evaluated, and may replace the champion."""

    at: Time
    why: str
    """Why it was refused; empty if it was blessed."""
    judged: ArtifactAddress
    """The evaluation."""
    fingerprint: str
    """Fingerprint of the model artifact."""
    uri: str
    """The model artifact's."""


def refused_candidates(
    session: Session, user: GetUserDep, models: Collection[tuple[str, str]], last: int
) -> dict[tuple[str, str], list[RefusedCandidate]]:
    """The refused candidates of some models, by model; the newest first. Arguments as of :func:`judged`."""
    return {
        model: [_refused(each) for each in evaluations if verdict_against(each.artifact) is not None]
        for model, evaluations in judged(session, user, models, last).items()
    }


def candidates_of(evaluations: Iterable[ReturnedArtifact], champion: str | None) -> list[Candidate]:
    """The models that were evaluated, each once, the newest first.

    Args:
        evaluations: The newest first.
        champion: Fingerprint of the champion, which is left out.
    """
    results: dict[str, Candidate] = {}
    for each in evaluations:
        model, _ = compared_models(each.artifact)
        if model.uri and model.fingerprint not in ("", champion, *results):
            why = "" if verdict_against(each.artifact) is None else why_refused(each.artifact)
            results[model.fingerprint] = Candidate(
                at=each.at, why=why, judged=returned_address(each), fingerprint=model.fingerprint, uri=model.uri
            )
    return list(results.values())


def judged(
    session: Session, user: GetUserDep, models: Collection[tuple[str, str]], last: int
) -> dict[tuple[str, str], list[ReturnedArtifact]]:
    """The evaluations of candidates of some models, by model; the newest first.

    Args:
        session: Of Airflow's database.
        user: Who looks; what was judged in DAGs whose artifacts they may not read is left out.
        models: Connection and name of each.
        last: How many verdicts of each task are looked at, the newest; blessings among them.
    """
    pipelines = [
        pipeline
        for pipeline in together(definitions.pipelines(session).values(), models)
        if may_read(user, pipeline.dag_id, DagAccessEntity.XCOM)
    ]
    returned = last_returned(session, [pipeline.dag_id for pipeline in pipelines], _JUDGE, last=last)
    results = {}
    for model in models:
        judging = together(pipelines, [model])
        judges = set()
        for pipeline in judging:
            # Tasks judge candidates of a model that they name; if they name none, where it is alone.
            named = {model[1]} if pipeline.models() != [model] else {model[1], None}
            tasks = (task for task in pipeline.tasks if task.kind in (_JUDGE, None) and task.model_name in named)
            judges |= {(pipeline.dag_id, task.task_id) for task in tasks}
        results[model] = [each for each in returned if (each.dag_id, each.task_id) in judges]
    return results


def _refused(returned: ReturnedArtifact) -> RefusedCandidate:
    artifact = returned.artifact
    candidate, champion = compared_models(artifact)
    version = champion.version if champion else None
    return RefusedCandidate(
        at=returned.at,
        why=why_refused(artifact),
        judged=returned_address(returned),
        metrics=dict(artifact.metrics),
        fingerprint=candidate.fingerprint,
        champion_version=version if isinstance(version, int) else None,
    )
