"""The FastAPI application of the plugin.

Nothing protects a plugin's routes but the routes themselves: each depends on one of the checks of
:mod:`airflow_hops.api.access`. That no page of another site changes anything is checked for all of them here.
"""

from __future__ import annotations

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from airflow_hops import __version__
from airflow_hops.api import (
    URL_PREFIX,
    artifact_files,
    artifacts,
    evaluations,
    lineage,
    lineage_starts,
    live,
    model_decisions,
    models,
    pipeline_activity,
    pipelines,
    rows,
    run_stages,
    schemas,
    skew,
    skew_report,
    static_files,
    statistics,
    task_results,
    tensorboard,
    training_run_files,
    training_runs,
    validation_report,
    validations,
)
from airflow_hops.api.access import check_origin
from airflow_hops.api.types import Problem
from airflow_hops.artifacts import BadInput, HopsError

_ROUTERS = (
    pipelines.router,
    pipeline_activity.router,
    artifacts.router,
    artifact_files.router,
    evaluations.router,
    lineage.router,
    lineage_starts.router,
    live.router,
    model_decisions.router,
    models.router,
    rows.router,
    run_stages.router,
    schemas.router,
    skew.router,
    skew_report.router,
    static_files.router,
    statistics.router,
    tensorboard.router,
    training_runs.router,
    training_run_files.router,
    task_results.router,
    validation_report.router,
    validations.router,
)


def make_app() -> FastAPI:
    """Makes the application."""
    app = FastAPI(
        title="airflow-hops",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # it would be there for everybody; see airflow_hops.api.openapi
        servers=[{"url": URL_PREFIX}],
        responses={"default": {"model": Problem, "description": "What is wrong"}},
        dependencies=[Depends(check_origin)],
        generate_unique_id_function=_operation_id,
        exception_handlers={HopsError: _failed},
    )
    for router in _ROUTERS:
        app.include_router(router)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


async def _failed(request: Request, error: Exception) -> JSONResponse:
    """What the user gave cannot be used (422), or something behind this API does not answer (502)."""
    return JSONResponse({"detail": str(error)}, 422 if isinstance(error, BadInput) else 502)
