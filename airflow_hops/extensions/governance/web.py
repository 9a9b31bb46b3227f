"""Model cards of versions, for users who may see all that they tell of."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, HTTPException
from fastapi.params import Path as PathParameter
from fastapi.responses import PlainTextResponse, Response

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.models.model_record import read_record
from airflow_hops.extensions.governance.core.cards.model_card import model_card
from airflow_hops.extensions.governance.core.cards.model_sources import VersionSources
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, MayRead
from airflow_hops.web.artifacts.lookup import pipeline_of, reaching
from airflow_hops.web.extension_pages import ExtensionPage
from airflow_hops.web.models.records import Served

router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}/versions/{version}", tags=["reports"])
PAGE = ExtensionPage(router=router)


@router.get("/card", response_class=PlainTextResponse, dependencies=[READS_ARTIFACTS, READS_RUNS])
def download_model_card(
    user: GetUserDep,
    served: Served,
    version: Annotated[int, PathParameter(ge=1)],
) -> Response:
    """Downloads the model card of a version in Markdown.

    Raises:
        HTTPException: 403, the card mentions DAGs that the user may not read; 404, the version does not exist;
            502, the store cannot be read.
    """
    store = served.hook.store
    with reaching(store):
        known = read_record(store, served.name).versions()
        if version not in known:
            raise HTTPException(404, f"model {served.name!r} has no version {version}; it has {known or 'none'}")
        sources = VersionSources(store, served.name, version)
        text = model_card(sources, documentation_of, datetime.now(UTC))
    readable = MayRead(user, DagAccessEntity.XCOM)
    if hidden := [dag_id for dag_id in sources.dags if dag_id not in readable]:
        raise HTTPException(403, f"the card mentions {len(hidden)} DAGs that you may not see")
    title = quote(f"{served.name} v{version} model card".replace("/", "-"), safe="")
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{title}.md",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(text, media_type="text/markdown; charset=utf-8", headers=headers)


def documentation_of(dag_id: str) -> str | None:
    """Returns the ``doc_md`` of a DAG, empty if it has none; None if the DAG is unknown."""
    with create_session() as session, contextlib.suppress(HTTPException):
        return pipeline_of(session, dag_id).doc or ""
    return None
