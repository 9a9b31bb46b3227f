"""Model cards of versions: current ones, limited to what the reader may see, and stored ones."""

from __future__ import annotations

import contextlib
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from fastapi.params import Path as PathParameter
from fastapi.responses import HTMLResponse, Response

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.reports.kept_cards import find_kept_card, keep_cards, read_kept_card
from airflow_hops.reports.model_card import model_card
from airflow_hops.reports.model_sources import VersionSources
from airflow_hops.reports.page import markdown
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, MayRead
from airflow_hops.web.answers import Format, send_report
from airflow_hops.web.artifacts.lookup import pipeline_of, reaching
from airflow_hops.web.models.records import Served, ServedModelOf

router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}/versions/{version}", tags=["reports"])


@router.get("/card", response_class=HTMLResponse, dependencies=[READS_ARTIFACTS, READS_RUNS])
def report_model_version(
    user: GetUserDep,
    served: Served,
    version: Annotated[int, PathParameter(ge=1)],
    format: Annotated[Format, Query(description="``html`` or ``md``, Markdown")] = "html",
    kept: Annotated[
        bool, Query(description="Whether to return the card stored at the newest decision on the version")
    ] = False,
) -> Response:
    """Downloads the model card of a version as one HTML or Markdown file.

    Raises:
        HTTPException: 403, the stored card mentions DAGs that the user may not read; 404, the version or its stored
            card does not exist; 502, the store cannot be read.
    """
    allowed, store = MayRead(user, DagAccessEntity.XCOM), served.hook.store
    title = f"{served.name} v{version} model card"
    with reaching(store):
        problems: list[str] = []
        card = find_kept_card(store, served.name, version, problems)
        if kept:
            if card is None:
                raise HTTPException(
                    404, " ".join([f"no card of version {version} of model {served.name!r} was kept", *problems])
                )
            if hidden := [dag_id for dag_id in card.dags if dag_id not in allowed]:
                raise HTTPException(403, f"the stored card mentions {len(hidden)} DAGs that you may not see")
            return send_report(title, read_kept_card(store, card, format), format)
        sources = VersionSources(store, served.name, version, allowed, prices=served.hook.settings.prices)
        versions = {event.version for event in sources.record.history}
        if version not in versions:
            there = sorted(versions) or "none"
            raise HTTPException(404, f"model {served.name!r} has no version {version}; it has {there}")
        sources.notes += problems
        if card is not None:
            at = f"{card.at}, after {card.after}"
            sources.notes.append(f"A card was stored at {at}, in {card.folder}: add kept=true to the address.")
        made = model_card(sources, documentation_of)
    return send_report(title, made.html() if format == "html" else markdown(made), format)


def keep_cards_of(served: ServedModelOf) -> str | None:
    """Stores the cards of versions that a person has just decided on; returns the error."""
    return keep_cards(served.hook.store, served.name, documentation_of, prices=served.hook.settings.prices)


def documentation_of(dag_id: str) -> str | None:
    """Returns the ``doc_md`` of a DAG, empty if it has none; None if the DAG is unknown."""
    with create_session() as session, contextlib.suppress(HTTPException):
        return pipeline_of(session, dag_id).doc or ""
    return None
