"""Activity of served models: shares and requests as model servers report them, and whether they answer.

Pages load it separately, since it waits for model servers; the list of pipelines needs only database and store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.errors import HopsError, ServerUnreachable
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.web.access import ReadableDags, may_read_results
from airflow_hops.web.artifacts.lookup import hook_of
from airflow_hops.web.artifacts.tasks import PipelineModel, read_pipelines
from airflow_hops.web.models.live import LiveModel, LiveVersion, NoProcess, server_of
from airflow_hops.web.models.records import external_endpoint, read_model_record
from airflow_hops.web.pipelines.health import Finding
from airflow_hops.web.types import Model
from airflow_hops.web.unusable_files import reading_threads

router = APIRouter(prefix="/api/pipelines", tags=["pipelines"])
TENSORFLOW = "tensorflow_model_server"
_silent_since: dict[str, datetime] = {}
"""Time at which this process first got no answer from the server of a connection; empty for servers that answer."""

DagIds = Annotated[list[str], Query(min_length=1, max_length=100, description="The pipelines' DAGs")]


class Activity(Model):
    """Activity of the models that a pipeline serves."""

    traffic: LiveModel | None
    """Versions with their counts as the model server reports them; null if the pipeline serves no model."""
    health: list[Finding]
    """At most one fact about the pipeline's health: that of the server."""


@router.get("/activity")
def list_activity(user: GetUserDep, readable: ReadableDags, dag_id: DagIds) -> dict[str, Activity]:
    """Returns the activity of the models that pipelines serve, by DAG, or why it is not known of one."""
    allowed = may_read_results(user)
    with create_session() as session:
        known = read_pipelines(session, list(readable))
    shown = {each: known[each] for each in dag_id if each in known and each in allowed}
    models = {name: pipeline.models()[0] for name, pipeline in shown.items() if pipeline.models()}
    asked = sorted({model.hops_conn_id for model in models.values()})
    with reading_threads() as threads:
        answers = dict(zip(asked, threads.map(_ask, asked), strict=True))
        hook = cache(hook_of)  # one for all models of a silent server
        results = threads.map(lambda model: _activity(hook, model, answers[model.hops_conn_id]), models.values())
        activities = dict(zip(models, results, strict=True))
    nothing = Activity(traffic=None, health=[])
    return {name: activities.get(name, nothing) if name in shown else _hidden(name, name in known) for name in dag_id}


def _hidden(dag_id: str, is_known: bool) -> Activity:
    """Returns why nothing is known of a DAG; whether one exists that the user may not read is not revealed."""
    missing = f"DAG {dag_id!r} does not exist, has no tasks of this package, or you may not read it"
    problem = f"you may not read the runs, task instances and XComs of {dag_id}" if is_known else missing
    finding = Finding(state="unknown", about="server", text="because the server was not asked", detail=problem)
    return Activity(traffic=LiveModel(problem=problem), health=[finding])


def _ask(conn_id: str) -> Mapping[str, Any] | HopsError | str:
    """Returns the server's counts, its error, or why it keeps no counts."""
    try:
        client, server = server_of(conn_id)
        if not server.is_bundled:
            if server.kind == TENSORFLOW:
                client.status("any")  # it answers that it has no such model
            result: Mapping[str, Any] | HopsError | str = (
                f"{client.address} is a {server.kind}, which keeps no counts per version"
            )
        else:
            result = client.stats()
    except NoProcess:
        return {}
    except ServerUnreachable as error:
        _silent_since.setdefault(conn_id, datetime.now(UTC))
        return error
    except HopsError as error:
        result = error
    _silent_since.pop(conn_id, None)
    return result


def _activity(
    hook: Callable[[str], RuntimeHook], model: PipelineModel, answer: Mapping[str, Any] | HopsError | str
) -> Activity:
    if isinstance(answer, str):
        return Activity(traffic=LiveModel(problem=answer), health=[])
    if isinstance(answer, HopsError):
        return _without_answer(hook, model, answer)
    counted = (answer.get("models") or {}).get(model.name, {}).get("versions", {})
    versions = [LiveVersion(**{**result, "version": int(version)}) for version, result in counted.items()]
    return Activity(traffic=LiveModel(versions=sorted(versions, key=lambda each: each.version)), health=[])


def _without_answer(hook: Callable[[str], RuntimeHook], model: PipelineModel, error: HopsError) -> Activity:
    """Returns what is known of a model about which no server tells; one that another installation serves needs none."""
    try:
        endpoint = external_endpoint(read_model_record(hook(model.hops_conn_id).store, model.name))
    except HTTPException:  # the list of pipelines says so
        endpoint = None
    if endpoint is not None:
        return Activity(traffic=LiveModel(address=endpoint, external=True), health=[])
    if isinstance(error, ServerUnreachable):
        since = _silent_since.get(model.hops_conn_id)
        finding = Finding(
            state="broken", about="server", text="the server does not answer", since=since, detail=str(error)
        )
    else:
        finding = Finding(state="unknown", about="server", text="because the server cannot be asked", detail=str(error))
    return Activity(traffic=LiveModel(problem=str(error)), health=[finding])
