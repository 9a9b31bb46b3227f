"""The FastAPI application of the plugin.

Nothing protects a plugin's routes but the routes themselves: each depends on one of Airflow's ``requires_access_…``.
"""

from __future__ import annotations

from fastapi import FastAPI

from airflow_hops.api.tensorboard import router


def make_app() -> FastAPI:
    """Makes the application."""
    app = FastAPI(title="airflow-hops", docs_url=None, redoc_url=None)
    app.include_router(router)
    return app
