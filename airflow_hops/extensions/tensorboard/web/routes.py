"""TensorBoard of running and finished trainings, behind Airflow's login."""

from __future__ import annotations

import contextlib
from pathlib import Path
from shlex import quote

import httpx
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import select

from airflow_hops.airflow_internals.database import (
    XCOM_IS_CURRENT,
    XCOM_RETURN_KEY,
    DagRun,
    XComModel,
    create_session,
)
from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import HopsError, StoreAway
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.files import LocalFiles
from airflow_hops.extensions.tensorboard.web.servers import TensorBoards
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.web.access import READS_LOGS
from airflow_hops.web.artifacts.lookup import TaskInstancePath, is_of, pipeline_of
from airflow_hops.web.extension_pages import ExtensionPage
from airflow_hops.web.frames import NO_OTHER_SITE

router = APIRouter(prefix="/tensorboard")
PAGE = ExtensionPage(router=router)
_boards = TensorBoards()
_REQUEST_HEADERS = {"accept", "content-type", "if-none-match"}
_RESPONSE_HEADERS = {"cache-control", "content-security-policy", "content-type", "etag", "expires"}
_TIMEOUT_S = 60.0


@router.api_route(
    "/{dag_id}/{run_id}/{task_id}/{instance}/{path:path}",
    methods=["GET", "POST"],  # TensorBoard 2.16: requests several series by POST, which changes nothing
    dependencies=[READS_LOGS],
    include_in_schema=False,
)
async def show(request: Request, task: TaskInstancePath, path: str) -> Response:
    """Proxies the TensorBoard of one task instance, which is started if necessary."""
    logdir, runtime = await run_in_threadpool(_find_events, task)
    try:
        address = await run_in_threadpool(_boards.address, logdir, runtime)
    except HopsError as error:
        # Only a server with a runtime environment can start it.
        there = f"where TensorBoard is installed, this shows it: tensorboard --logdir {quote(str(logdir))}"
        raise HTTPException(502, f"{error}\n{there}") from error
    answer = await _pass_on(request, f"{address}/{path}")
    if path == "" and answer.status_code == 200:
        # The page loads fonts from the root of the host, which belongs to Airflow.
        page = bytes(answer.body).replace(b"url(/font-roboto/", b"url(font-roboto/")
        return Response(page, 200, {name: value for name, value in answer.headers.items() if name != "content-length"})
    return answer


def _find_events(task: Producer) -> tuple[Path, Path]:
    """Returns the folder of a training's event files, and the runtime environment; raises HTTPException without one."""
    with create_session() as session:
        known = session.scalar(select(DagRun.id).where(DagRun.dag_id == task.dag_id, DagRun.run_id == task.run_id))
        pipeline = pipeline_of(session, task.dag_id)
        returned = session.execute(
            select(XComModel.value).where(XComModel.key == XCOM_RETURN_KEY, XCOM_IS_CURRENT, *is_of(XComModel, task))
        ).first()
        model = XComModel.deserialize_value(returned) if returned is not None else None
    if known is None or pipeline.task(task.task_id) is None:
        raise HTTPException(404, f"there is no task {task.task_id!r} in run {task.run_id!r} of DAG {task.dag_id!r}")
    try:
        hook = RuntimeHook(pipeline.conn_id(task.task_id))
        store, runtime = hook.store, hook.settings.runtime
        if isinstance(model, dict) and model.get("kind") == "model":
            result: Path | None = store.local(Artifact.from_dict(model), checked=False) / "tensorboard"
        else:
            result = _staged(store, store.address(task, "model"))
    except HopsError as error:
        raise HTTPException(502 if isinstance(error, StoreAway) else 404, str(error)) from error
    if result is None:
        raise HTTPException(
            404,
            f"task {task.task!r} of run {task.run_id!r} has no event files yet: they appear after its first epoch if "
            f"the artifact store is on this machine ({store.root}), otherwise after the task has finished",
        )
    return result, runtime


def _staged(store: ArtifactStore, uri: str) -> Path | None:
    """Returns the event files of a running training, in its writer's staging folder."""
    if not isinstance(store.files, LocalFiles):
        return None
    staged = sorted(store.files.staged(uri), key=_modified, reverse=True)
    return next((path / "tensorboard" for path in staged if (path / "tensorboard").is_dir()), None)


def _modified(folder: Path) -> float:
    with contextlib.suppress(FileNotFoundError):
        return folder.stat().st_mtime
    return 0.0


async def _pass_on(request: Request, url: str) -> Response:
    headers = {name: value for name, value in request.headers.items() if name.lower() in _REQUEST_HEADERS}
    try:
        # Plain HTTP on the loopback interface: reading certificates would take longer than the request.
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, verify=False) as client:
            answer = await client.request(
                request.method,
                f"{url}?{request.url.query}" if request.url.query else url,
                headers=headers,
                content=await request.body(),
            )
    except httpx.HTTPError as error:
        raise HTTPException(502, f"TensorBoard does not respond ({type(error).__name__}: {error})") from error
    retained = {name: value for name, value in answer.headers.items() if name.lower() in _RESPONSE_HEADERS}
    # TensorBoard 2.16: workers inherit the policy of their script, so responses without one only get ours for frames.
    retained.setdefault("content-security-policy", NO_OTHER_SITE)
    return Response(answer.content, answer.status_code, retained)
