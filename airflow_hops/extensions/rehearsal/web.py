"""Rehearsals of a model's monitor: the faults that it finds, how soon, and what slips through."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException
from fastapi.params import Path as PathParameter
from pydantic import ValidationError

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.core.errors import HopsError
from airflow_hops.core.monitor_reports import ListedReport, reports_of_model
from airflow_hops.core.redaction import redacted
from airflow_hops.extensions.rehearsal.core.rehearsal import REHEARSAL, REPORT_FILE, Rehearsal
from airflow_hops.web.access import READS_ARTIFACTS, MayRead
from airflow_hops.web.artifacts.lookup import FoundArtifact, reaching
from airflow_hops.web.extension_pages import ExtensionPage
from airflow_hops.web.models.records import Served
from airflow_hops.web.pages import STATIC
from airflow_hops.web.types import Limit, Model, Offset, Page, TaskAddress, Time
from airflow_hops.web.unusable_files import reading_threads

router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}/rehearsals", tags=["skew"], dependencies=[READS_ARTIFACTS])
PAGE = ExtensionPage(router=router, bundle=STATIC / "rehearsal.umd.js", destination="skew", label="Rehearsal")
RehearsalId = Annotated[str, PathParameter(pattern=r"^[0-9]{1,9}-[0-9a-f]{16}$", description="The rehearsal's id")]


class RehearsalEntry(Model):
    """A rehearsal in a list."""

    id: str
    version: int
    made: Time


class MadeRehearsal(Model):
    """A complete rehearsal."""

    made: Time
    task: TaskAddress
    """Task that made it, or the command in the form of a task."""
    report: Rehearsal
    """Contents of ``rehearsal.json``."""


def _listed(user: GetUserDep, served: Served) -> list[ListedReport]:
    """Returns the rehearsals of a model that the user may read, most recently made first."""
    may_read = MayRead(user, DagAccessEntity.XCOM)
    with reaching(served.hook.store):
        return [each for each in reports_of_model(served.hook.store, served.name, REHEARSAL) if each.dag_id in may_read]


def _id_of(listed: ListedReport) -> str:
    return f"{listed.version}-{listed.name.rpartition('@')[2].removesuffix('.json')}"


@router.get("")
def list_model_rehearsals(
    user: GetUserDep, served: Served, limit: Limit = 50, offset: Offset = 0
) -> Page[RehearsalEntry]:
    """Lists the rehearsals of a model's monitor, most recently made first."""
    store, listed = served.hook.store, _listed(user, served)

    def read(each: ListedReport) -> RehearsalEntry | str | None:
        try:
            return RehearsalEntry(id=_id_of(each), version=each.version, made=each.read(store).at)  # type: ignore[arg-type]
        except FileNotFoundError:  # it was replaced meanwhile
            return None
        except (HopsError, ValidationError) as error:
            return redacted(str(error))

    with reaching(store), reading_threads() as threads:
        result = list(threads.map(read, listed[offset : offset + limit]))
    return Page[RehearsalEntry](
        entries=[each for each in result if isinstance(each, RehearsalEntry)],
        problems=[each for each in result if isinstance(each, str)],
        total_entries=len(listed),
    )


@router.get("/{rehearsal}")
def get_model_rehearsal(user: GetUserDep, served: Served, rehearsal: RehearsalId) -> MadeRehearsal:
    """Returns a rehearsal: its faults, features and unchanged windows.

    Raises:
        HTTPException: 404, it does not exist, or the user may not read the DAG that made it; 410, it was deleted; 502,
            the store cannot be read, or the report is damaged.
    """
    store = served.hook.store
    listed = next((each for each in _listed(user, served) if _id_of(each) == rehearsal), None)
    if listed is None:
        raise HTTPException(404, f"model {served.name!r} has no rehearsal {rehearsal!r}")
    with reaching(store):
        report = listed.read(store)
    rehearsed = FoundArtifact.open(served.hook, report.artifact)
    content: Any = rehearsed.read_json(REPORT_FILE)
    try:
        result = MadeRehearsal(made=report.at, task=TaskAddress.of(rehearsed.manifest.producer), report=content)  # type: ignore[arg-type]  # read by its fields' types
        problem = f"model_name: {result.report.model_name!r}, expected {served.name!r}"
    except ValidationError as error:
        first = error.errors()[0]
        result, problem = None, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if result is None or result.report.model_name != served.name:
        uri = f"{rehearsed.artifact.uri}/{REPORT_FILE}"
        raise HTTPException(502, f"{uri}: not a rehearsal of this model ({problem}); clear the task that made it")
    return result
