"""The FastAPI application of the plugin.

Nothing protects a plugin's routes but the routes themselves: each depends on one of the checks of
:mod:`airflow_hops.web.access`. That no page of another site changes anything is checked for all of them here.
"""

from __future__ import annotations

from fastapi import Depends, FastAPI, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from airflow_hops import __version__
from airflow_hops.core.contract.artifacts import BadInput, HopsError, UnreadableFile
from airflow_hops.core.contract.redaction import redacted
from airflow_hops.core.contract.web import URL_PREFIX
from airflow_hops.web import static_files, views
from airflow_hops.web.access import check_origin
from airflow_hops.web.artifacts import files as artifact_files
from airflow_hops.web.artifacts import routes as artifacts
from airflow_hops.web.artifacts import rows, statistics
from airflow_hops.web.frames import NOTHING, FrameGuard
from airflow_hops.web.lineage import routes as lineage
from airflow_hops.web.lineage import starts as lineage_starts
from airflow_hops.web.models import backtests, evaluations, live, notes
from airflow_hops.web.models import card as model_card
from airflow_hops.web.models import decisions as model_decisions
from airflow_hops.web.models import performance as model_performance
from airflow_hops.web.models import routes as models
from airflow_hops.web.pipelines import activity as pipeline_activity
from airflow_hops.web.pipelines import overview as pipeline_overview
from airflow_hops.web.pipelines import routes as pipelines
from airflow_hops.web.pipelines import tasks as task_results
from airflow_hops.web.reports import backtest as backtest_report
from airflow_hops.web.reports import comparisons
from airflow_hops.web.runs import provenance, studies, tensorboard
from airflow_hops.web.runs import stages as run_stages
from airflow_hops.web.runs import training_files as training_run_files
from airflow_hops.web.runs import trainings as training_runs
from airflow_hops.web.schemas import proposals, validation_report, validations
from airflow_hops.web.schemas import routes as schemas
from airflow_hops.web.skew import report as skew_report
from airflow_hops.web.skew import routes as skew
from airflow_hops.web.types import Problem
from airflow_hops.web.unusable_files import UnusableFiles

_ROUTERS = (
    notes.router,
    pipelines.router,
    pipeline_activity.router,
    pipeline_overview.router,
    proposals.router,
    provenance.router,
    artifacts.router,
    artifact_files.router,
    backtests.router,
    backtest_report.router,
    comparisons.router,
    evaluations.router,
    lineage.router,
    lineage_starts.router,
    live.router,
    model_decisions.router,
    model_card.router,
    model_performance.router,
    models.router,
    rows.router,
    run_stages.router,
    schemas.router,
    skew.router,
    skew_report.router,
    static_files.router,
    statistics.router,
    studies.router,
    tensorboard.router,
    training_runs.router,
    training_run_files.router,
    task_results.router,
    validation_report.router,
    validations.router,
    views.router,
)


def make_app() -> FastAPI:
    """Makes the application."""
    app = FastAPI(
        title="airflow-hops",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # it would be there for everybody; see airflow_hops.web.openapi
        servers=[{"url": URL_PREFIX}],
        responses={"default": {"model": Problem, "description": "What is wrong"}},
        dependencies=[Depends(check_origin)],
        generate_unique_id_function=_operation_id,
        exception_handlers={HopsError: _failed, HTTPException: _refused},
    )
    app.add_middleware(UnusableFiles)
    app.add_middleware(FrameGuard, policy=NOTHING)
    for router in _ROUTERS:
        app.include_router(router)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


async def _refused(request: Request, error: Exception) -> Response:
    """As FastAPI does; what is wrong may name addresses with credentials in them."""
    assert isinstance(error, HTTPException)
    if isinstance(error.detail, str):
        error.detail = redacted(error.detail)
    return await http_exception_handler(request, error)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    """What the user gave cannot be used (422), or something behind this API does not answer (502)."""
    is_given = isinstance(error, BadInput) and not isinstance(error, UnreadableFile)
    return JSONResponse({"detail": str(error)}, 422 if is_given else 502)
