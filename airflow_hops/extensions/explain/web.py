"""Explanations of a model: what it looks at, beside the champion, and the reasons of some predictions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException
from pydantic import ValidationError

from airflow_hops.airflow_internals.database import create_session
from airflow_hops.extensions.explain.core.explanation import EXPLANATION_FILE, Explanation, ExplanationProperties
from airflow_hops.web.access import READS_ARTIFACTS
from airflow_hops.web.artifacts.lookup import TaskArtifact
from airflow_hops.web.artifacts.routes import ArtifactAddress
from airflow_hops.web.artifacts.tasks import last_returned
from airflow_hops.web.extension_pages import ExtensionPage
from airflow_hops.web.models.records import Served
from airflow_hops.web.pages import STATIC
from airflow_hops.web.types import Model, Page, Time

router = APIRouter(prefix="/api/dags/{dag_id}", tags=["models"], dependencies=[READS_ARTIFACTS])
PAGE = ExtensionPage(
    router=router, bundle=STATIC / "explain.umd.js", destination="model", label="Explanations", kind="explanation"
)

_LAST = 50
"""Number of explanations per explaining task that are listed."""


class ExplanationEntry(ArtifactAddress):
    """An explanation in a list."""

    at: Time
    fingerprint: str
    """Fingerprint of the explained model artifact."""
    champion_version: int | None
    """Version that it is compared with, if any."""
    warnings: list[str]


class ReadExplanation(Model):
    """An explanation."""

    report: Explanation
    """Contents of ``explanation.json``."""


@router.get("/models/{model}/explanations")
def list_model_explanations(served: Served) -> Page[ExplanationEntry]:
    """Lists the explanations that tasks of the pipeline made of a model, newest first."""
    with create_session() as session:
        returned = last_returned(session, [served.dag_id], "explanation", _LAST)
    entries = []
    for each in returned:
        properties = ExplanationProperties.of(each.artifact)
        if properties.model_name in (served.name, None):
            entries.append(
                ExplanationEntry.of(
                    each,
                    each.artifact,
                    fingerprint=properties.candidate.fingerprint,
                    champion_version=properties.champion.version if properties.champion else None,
                    warnings=list(properties.warnings),
                )
            )
    return Page[ExplanationEntry](total_entries=len(entries), entries=entries)


@router.get("/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/explanation")
def get_explanation(found: TaskArtifact) -> ReadExplanation:
    """Returns an explanation: importance, partial dependence, and the reasons of some predictions."""
    content: Any = found.read_json(EXPLANATION_FILE)
    try:
        return ReadExplanation(report=content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise HTTPException(502, f"{found.artifact.uri}/{EXPLANATION_FILE}: {where}: {first['msg']}") from error
