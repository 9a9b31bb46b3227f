"""Finds the model of a route: one that a pipeline works on, by the pipeline and its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from airflow.utils.session import create_session
from fastapi import Depends, HTTPException
from fastapi.params import Path as PathParameter

from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.web.artifacts.lookup import hook_of, pipeline_of
from airflow_hops.web.queries import ask

ModelName = Annotated[
    str, PathParameter(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=220, description="The model's name")
]

_VERSIONS = 500
"""Versions of MLflow's that a page lists; older ones are left out."""


@dataclass(frozen=True)
class ServedModelOf:
    """A model that a pipeline trains, deploys or monitors.

    Attributes:
        dag_id: The pipeline.
        name: The model's name, in MLflow's registry and on the server.
        hops_conn_id: Connection with the store and MLflow.
        server_conn_id: Connection with the model server.
        is_decided_here: Whether the pipeline deploys it, or decides what of it serves; others watch or use it.
    """

    dag_id: str
    name: str
    hops_conn_id: str
    server_conn_id: str
    is_decided_here: bool

    @property
    def hook(self) -> RuntimeHook:
        """The hook of its store and MLflow."""
        return hook_of(self.hops_conn_id)


def find_model(dag_id: str, model: ModelName) -> ServedModelOf:
    """The model of a pipeline. It depends on no access check: the route does.

    Raises:
        HTTPException: 404, there is no such pipeline, or it works on no model of this name.
    """
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
    models = pipeline.models()
    for hops_conn_id, name in models:
        if name == model:
            server_conn_id = pipeline.server_conn_id(hops_conn_id, name)
            return ServedModelOf(dag_id, name, hops_conn_id, server_conn_id, pipeline.decides_on(name))
    names = ", ".join(repr(name) for _, name in models)
    raise HTTPException(404, f"DAG {dag_id!r} serves no model {model!r}; it works on {names or 'none'}")


Served = Annotated[ServedModelOf, Depends(find_model)]
"""The model of a route below ``/dags/{dag_id}/models/{model}``."""


def registered_versions(served: ServedModelOf) -> tuple[dict[int, Mapping[str, Any]], str | None]:
    """MLflow's versions by number; and why they are not known, where they are not. Of very many, the newest."""
    try:
        result = ask(served.hook, "registry/versions", {"model_name": served.name, "max_results": _VERSIONS})
    except HTTPException as error:
        return {}, str(error.detail)
    return {each["version"]: each for each in result["versions"]}, None
