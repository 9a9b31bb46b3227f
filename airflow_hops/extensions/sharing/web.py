"""Shared data sets: what this organisation and others share, transfers, and the catalogue for other organisations.

The catalogue has only what was published, and anybody may read it, without a login. The other routes need the right to
read a DAG, as lists across DAGs do. All of them read the store of the connection ``hops_default``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi.params import Path as PathParameter

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.core.errors import BadInput
from airflow_hops.core.redaction import masked
from airflow_hops.core.store.leases import Watch
from airflow_hops.extensions.sharing.core.entries import Dataset, DatasetEntry, DatasetRef
from airflow_hops.extensions.sharing.core.records import OWNED, Catalogue, Daemon, SharingRecords, Transfer
from airflow_hops.extensions.sharing.core.search import search
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.web.access import TRIGGERS_RUNS, ReadableDags
from airflow_hops.web.artifacts.lookup import hook_of, reaching
from airflow_hops.web.extension_pages import ExtensionPage
from airflow_hops.web.owners import NewOwners, OwnedName, Reason, change_owners, read_owners
from airflow_hops.web.pages import STATIC
from airflow_hops.web.types import Json, Model, Number

router = APIRouter(tags=["sharing"])
PAGE = ExtensionPage(router=router, bundle=STATIC / "sharing.umd.js", destination="pipelines", label="Shared data")

_watches: dict[str, Watch[Daemon | None]] = {}
"""Watches of the daemons' beats by store, from the first request for the page on."""

Search = Annotated[str, Query(alias="search", max_length=500, description="Words and conditions, as rows>1000")]


@dataclass(frozen=True, kw_only=True)
class SharedDataset(DatasetEntry):
    """A data set of a catalogue.

    Attributes:
        is_fetched: Whether its files are in the store.
    """

    organisation: str
    is_own: bool
    is_fetched: bool
    transfer: Transfer | None


class SharingOrganisation(Model):
    """A trusted organisation and its catalogue."""

    organisation: str
    url: str
    key: str
    hosts: list[str]
    datasets: int
    read_at: Number
    """Time of the last successful reading, in seconds since 1970; null if there was none."""
    error: str | None
    rejected: list[str]
    """Statements that do not count, with the reason."""
    down_bytes_s: float
    up_bytes_s: float
    dropped: list[str]
    """Transfers from which it was dropped."""


class SharingState(Model):
    """Everything that is shared; without a daemon, as it last reported."""

    daemon: Daemon | None
    is_alive: bool
    """Whether the daemon runs."""
    datasets: list[SharedDataset]
    organisations: list[SharingOrganisation]


class DatasetTable(Model):
    """A table of a data set."""

    name: str
    types: dict[str, str]
    schema_text: str
    statistics: Json
    columns: list[str]
    rows: list[list[Json]]


class DatasetPreview(Model):
    """Preview of a data set; null fields if it was not fetched yet."""

    card: str | None
    tables: list[DatasetTable]
    owned: OwnedName | None
    """Owners of a name under which this organisation publishes."""


@router.get("/api/sharing")
def get_sharing(readable: ReadableDags, text: Search = "") -> SharingState:
    """Returns what is shared and fetched, and the trusted organisations; ``search`` selects among the data sets."""
    hook = hook_of(RuntimeHook.default_conn_name)
    records = SharingRecords(hook.store)
    with reaching(hook.store):
        daemon, transfers, own = records.daemon(), records.transfers(), records.own()
        others, catalogues = records.datasets(), records.catalogues()
        asked = {each.ref for each in records.requests()}
        fetched = {each.ref for each in others if each.ref in asked and records.fetched(each.ref)}
    watch = _watches.setdefault(hook.store.root, Watch(daemon))
    watch.see(daemon)
    datasets: list[Any] = [
        _dataset(each, transfers.get(each.entry.info_hash), is_own=each in own, is_fetched=each.ref in fetched)
        for each in search([*own, *others], text)
    ]
    return SharingState(
        daemon=daemon and daemon.to_dict(),  # type: ignore[arg-type]  # checked by its fields' types
        is_alive=daemon is not None and not watch.is_dead,
        datasets=datasets,
        organisations=[_organisation(each, list(transfers.values())) for each in catalogues],
    )


@router.get("/api/sharing/{organisation}/{name}/{version}")
def get_preview(
    readable: ReadableDags,
    user: GetUserDep,
    organisation: str,
    name: str,
    version: Annotated[int, PathParameter(ge=1, lt=2**31)],
) -> DatasetPreview:
    """Returns the card, schema, statistics and sample rows of a data set."""
    hook = hook_of(RuntimeHook.default_conn_name)
    records = SharingRecords(hook.store)
    with reaching(hook.store):
        try:
            ref = DatasetRef.parse(f"{organisation}/{name}@{version}")
        except BadInput as error:
            raise HTTPException(404, str(error)) from None
        own = records.own()
        dataset = next((each for each in [*own, *records.datasets()] if ref.matches(each)), None)
        if dataset is None:
            raise HTTPException(404, f"there is no data set {ref}")
        preview = records.preview(dataset)
    owned = read_owners(user, hook.store, OWNED, name) if dataset in own else None
    if preview is None:
        return DatasetPreview(card=None, tables=[], owned=owned)
    try:
        tables = [
            DatasetTable(
                name=table,
                types=dict(types),
                schema_text=preview.schema.get(table, ""),
                statistics=preview.statistics.get(table, {}),
                columns=preview.sample.get(table, {}).get("columns", []),
                rows=preview.sample.get(table, {}).get("rows", []),
            )
            for table, types in preview.types.items()
        ]
    except (AttributeError, TypeError, ValueError) as error:  # also pydantic's: the publisher controls the content
        raise HTTPException(422, f"the preview of {ref} cannot be shown: {error}") from None
    return DatasetPreview(card=preview.card, tables=tables, owned=owned)


@router.post("/api/dags/{dag_id}/published/{dataset}/owners", dependencies=[TRIGGERS_RUNS])
def set_dataset_owners(user: GetUserDep, dag_id: str, dataset: str, owners: NewOwners, reason: Reason) -> OwnedName:
    """Names the DAGs whose artifacts may be published under a name that the DAG owns.

    Raises:
        HTTPException: 403, the user may not trigger one of the owners before or after; 404, there is no such pipeline,
            or the DAG does not own the name.
    """
    return change_owners(user, hook_of(RuntimeHook.default_conn_name).store, OWNED, dataset, dag_id, owners, reason)


@router.get("/catalogue/catalogue.json", include_in_schema=False)
def get_catalogue() -> Response:
    """Returns the signed statements of this organisation, for others."""
    return _public("catalogue.json", media_type="application/json")


@router.get("/catalogue/documents/{digest}", include_in_schema=False)
def get_document(digest: Annotated[str, PathParameter(pattern="^[0-9a-f]{64}$")]) -> Response:
    """Returns a preview or torrent file that the catalogue names, by its SHA-256."""
    return _public("documents", digest, media_type="application/octet-stream")


def _public(*segments: str, media_type: str) -> Response:
    hook = hook_of(RuntimeHook.default_conn_name)
    records = SharingRecords(hook.store)
    with reaching(hook.store):
        try:
            content = hook.store.files.read(records.uri("public", *segments))
        except FileNotFoundError:
            raise HTTPException(404, "nothing of that name is published") from None
    return Response(content, media_type=media_type)


def _dataset(dataset: Dataset, transfer: Transfer | None, *, is_own: bool, is_fetched: bool) -> dict[str, Any]:
    """Returns a :class:`SharedDataset`, whose fields' types pydantic checks."""
    own = {"organisation": dataset.organisation, "is_own": is_own, "is_fetched": is_fetched}
    features = masked(dataset.entry.features)
    return {**dataset.entry.to_dict(), **own, "features": features, "transfer": transfer and transfer.to_dict()}


def _organisation(catalogue: Catalogue, transfers: Sequence[Transfer]) -> SharingOrganisation:
    mine = [peer for each in transfers for peer in each.peers if peer.organisation == catalogue.organisation]
    named = f"{catalogue.organisation} at "
    return SharingOrganisation.of(
        catalogue,
        datasets=len(catalogue.datasets),
        read_at=catalogue.at or None,
        down_bytes_s=sum(each.down_bytes_s for each in mine),
        up_bytes_s=sum(each.up_bytes_s for each in mine),
        dropped=[f"{each.ref}: {who}" for each in transfers for who in each.dropped if who.startswith(named)],
    )
