"""The FastAPI application of the plugin.

Airflow does not protect a plugin's routes: each depends on a check of :mod:`airflow_hops.web.access`. The application
itself checks the origin of all state-changing requests.
"""

from __future__ import annotations

import importlib
import pkgutil

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from airflow_hops import __version__, web
from airflow_hops.core.errors import BadInput, HopsError, UnreadableText
from airflow_hops.core.redaction import redacted
from airflow_hops.core.web import URL_PREFIX
from airflow_hops.web.access import check_origin
from airflow_hops.web.extension_pages import load_pages
from airflow_hops.web.frames import NOTHING, FrameGuard
from airflow_hops.web.types import Problem
from airflow_hops.web.unusable_files import UnusableFiles


def make_app() -> FastAPI:
    """Returns the application with the routers of all modules in this package, and those of extensions."""
    app = FastAPI(
        title="airflow-hops",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # it would be public; see airflow_hops.web.openapi
        servers=[{"url": URL_PREFIX}],
        responses={"default": {"model": Problem, "description": "What is wrong"}},
        dependencies=[Depends(check_origin)],
        generate_unique_id_function=lambda route: route.name,
        exception_handlers={HopsError: _failed, HTTPException: _refused},
    )
    app.add_middleware(UnusableFiles)
    app.add_middleware(FrameGuard, policy=NOTHING)
    for module in sorted(pkgutil.walk_packages(web.__path__, f"{web.__name__}."), key=lambda each: each.name):
        router = getattr(importlib.import_module(module.name), "router", None)
        if isinstance(router, APIRouter):
            app.include_router(router)
    app.state.pages = load_pages()
    for page in app.state.pages.values():
        app.include_router(page.router)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    """Answers as FastAPI does, but removes credentials from addresses in the detail."""
    assert isinstance(error, HTTPException)
    if isinstance(error.detail, str):
        error.detail = redacted(error.detail)
    return await http_exception_handler(request, error)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    """Answers 422 for unusable input of the user, and 502 if a service behind this API fails."""
    is_given = isinstance(error, BadInput) and not isinstance(error, UnreadableText)
    return JSONResponse({"detail": str(error)}, 422 if is_given else 502)
