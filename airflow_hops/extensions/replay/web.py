"""Back-tests of retraining policies: the results that each policy would have had in a model's past."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Response
from fastapi.params import Path as PathParameter
from pydantic import ValidationError

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.replay.core.backtest import (
    POLICY_FILE,
    REPORT_FILE,
    BacktestReport,
)
from airflow_hops.extensions.replay.core.backtests import ID_PATTERN, backtest_ids, backtest_uri
from airflow_hops.web.access import READS_ARTIFACTS, MayRead
from airflow_hops.web.artifacts.lookup import reaching
from airflow_hops.web.extension_pages import ExtensionPage
from airflow_hops.web.models.records import DecidedBy, Served, ServedModelOf
from airflow_hops.web.pages import STATIC
from airflow_hops.web.types import Json, Limit, Model, Offset, Page
from airflow_hops.web.unusable_files import reading_threads

router = APIRouter(
    prefix="/api/dags/{dag_id}/models/{model}/backtests", tags=["models"], dependencies=[READS_ARTIFACTS]
)
PAGE = ExtensionPage(router=router, bundle=STATIC / "replay.umd.js", destination="model", label="Back-tests")
BacktestId = Annotated[str, PathParameter(pattern=ID_PATTERN, description="The back-test's id")]


class BacktestEntry(Model):
    """A back-test in a list."""

    id: str
    made: str
    chosen: str
    """Policy with the highest net gain at the report's price of a training."""


class _Damaged(BadInput):
    """An unreadable report of which at most the replayed DAG is known."""

    def __init__(self, message: str, dag_id: object) -> None:
        super().__init__(message)
        self.dag_id = dag_id if isinstance(dag_id, str) else None


class Backtest(Model):
    """A complete back-test."""

    id: str
    by: DecidedBy | None
    """User or task that ran it."""
    has_policy: bool
    """Whether a ``policy.json`` of the chosen policy exists."""
    report: BacktestReport
    """Contents of ``backtest.json``, without ``by``."""


def _read(served: ServedModelOf, backtest_id: str) -> Backtest:
    """Reads a back-test; raises FileNotFoundError if it is missing, BadInput if its report is damaged or a link."""
    store = served.hook.store
    folder = backtest_uri(store, served.name, backtest_id)
    content: Any = None
    try:
        content = store.read_json(store.file(folder, REPORT_FILE))
        made_by = content.get("by") or {}
        result = Backtest(
            id=backtest_id,
            by=DecidedBy(**{name: made_by.get(name) for name in DecidedBy.model_fields}) if made_by else None,
            has_policy=POLICY_FILE in store.names(folder),
            report={**content, "by": {}},  # type: ignore[arg-type]  # read and checked by its fields' types
        )
        if result.report.model_name == served.name:
            return result
        problem = f"model_name: {result.report.model_name!r}, expected {served.name!r}"
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (AttributeError, TypeError, RecursionError) as error:
        problem = f"{type(error).__name__}: {error}"
    message = f"{folder}/{REPORT_FILE}: not a back-test's report ({problem}); restore it, or remove its folder"
    raise _Damaged(message, content.get("dag_id") if isinstance(content, dict) else None)


def find_backtest(
    user: GetUserDep, _: Annotated[None, READS_ARTIFACTS], served: Served, backtest: BacktestId
) -> Backtest:
    """Returns the back-test of a route, without its author if that is a DAG that the user may not read.

    Raises:
        HTTPException: 404, it does not exist, or replays a DAG that the user may not read; 502, the store cannot be
            read, or the report is damaged.
    """
    may_read = MayRead(user, DagAccessEntity.XCOM)
    none = HTTPException(404, f"model {served.name!r} has no back-test {backtest!r}")
    with reaching(served.hook.store):
        try:
            result = _read(served, backtest)
        except FileNotFoundError:
            raise none from None
        except _Damaged as error:
            raise (none if _is_hidden(error.dag_id, may_read) else error) from None
    if _is_hidden(result.report.dag_id, may_read):
        raise none
    by = result.by.dag_id if result.by else None
    return result.model_copy(update={"by": None}) if _is_hidden(by, may_read) else result


def _is_hidden(dag_id: str | None, may_read: MayRead) -> bool:
    return dag_id is not None and dag_id not in may_read


FoundBacktest = Annotated[Backtest, Depends(find_backtest)]


@router.get("")
def list_model_backtests(
    user: GetUserDep, served: Served, limit: Limit = 50, offset: Offset = 0
) -> Page[BacktestEntry]:
    """Lists back-tests of a model, newest first; the total includes those that the user may not read."""
    store, may_read = served.hook.store, MayRead(user, DagAccessEntity.XCOM)

    def read(backtest_id: str) -> tuple[str | None, BacktestEntry | str] | None:
        try:
            report = _read(served, backtest_id).report
            return report.dag_id, BacktestEntry(id=backtest_id, made=report.made, chosen=report.chosen)
        except FileNotFoundError:  # removal may leave the folder
            return None
        except BadInput as error:
            return getattr(error, "dag_id", None), str(error)

    with reaching(store), reading_threads() as threads:
        listed = backtest_ids(store, served.name)
        result = list(threads.map(read, listed[offset : offset + limit]))
    shown = [each[1] for each in result if each and not _is_hidden(each[0], may_read)]
    return Page[BacktestEntry](
        entries=[each for each in shown if isinstance(each, BacktestEntry)],
        problems=[each for each in shown if isinstance(each, str)],
        total_entries=len(listed),
    )


@router.get("/{backtest}")
def get_model_backtest(found: FoundBacktest) -> Backtest:
    """Returns a back-test: its policies with their decisions, its candidates, and the best schedule in hindsight."""
    return found


@router.get("/{backtest}/policy", response_model=dict[str, Json])
def download_backtest_policy(served: Served, found: FoundBacktest) -> Response:
    """Downloads ``policy.json`` of the chosen policy.

    Raises:
        HTTPException: 404, there is none, for example because the chosen policy never retrains.
    """
    store = served.hook.store
    with reaching(store):
        try:
            text = store.read_text(store.file(backtest_uri(store, served.name, found.id), POLICY_FILE))
        except FileNotFoundError:
            raise HTTPException(404, f"back-test {found.id!r} has no {POLICY_FILE}") from None
    headers = {"Content-Disposition": f"attachment; filename={POLICY_FILE}", "Content-Security-Policy": "sandbox"}
    return Response(text, media_type="application/json", headers=headers)
