"""Pages of installed extensions, which the others show the way to."""

from __future__ import annotations

from fastapi import APIRouter

from airflow_hops.core.extensions import PAGES, extensions
from airflow_hops.web.access import ReadableDags

router = APIRouter(prefix="/api/extensions", tags=["pipelines"])


@router.get("")
def list_extensions(readable: ReadableDags) -> list[str]:
    """Lists the pages of extensions by the names under which they are registered."""
    return sorted(extensions(PAGES))
