"""The segments of a served fleet: those that matter first, and the story of one of them."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.models.model_record import ModelRecord
from airflow_hops.extensions.fleet.core.options import FINDINGS_FILE, FleetSkewProperties
from airflow_hops.extensions.fleet.core.summary import SUMMARY_FILE, SegmentTable
from airflow_hops.web.access import READS_ARTIFACTS, MayRead
from airflow_hops.web.artifacts.lookup import FoundArtifact, open_returned
from airflow_hops.web.artifacts.routes import ArtifactAddress, returned_address
from airflow_hops.web.artifacts.tasks import ReturnedArtifact, last_returned, read_pipelines, together
from airflow_hops.web.extension_pages import ExtensionPage
from airflow_hops.web.models.records import Served, ServedModelOf, read_model_record
from airflow_hops.web.pages import STATIC
from airflow_hops.web.types import Limit, Model, Number, Offset, Time
from airflow_hops.web.unusable_files import reading_threads

router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}/fleet", tags=["models"], dependencies=[READS_ARTIFACTS])
PAGE = ExtensionPage(
    router=router,
    bundle=STATIC / "fleet.umd.js",
    destination="model",
    label="Segments",
    applies=f"{router.prefix}/applies",
)

_VERSIONS = 12
"""Versions whose losses are shown, the newest."""
_COMPARISONS = 50
"""Comparisons per comparing task that are searched for findings."""

Key = Annotated[str, Query(min_length=1, max_length=1024, description="Key of the segment")]


class FleetVersion(Model):
    """A version of a fleet that served."""

    version: int
    at: Time
    """When it first came to serve."""
    states: dict[str, int]
    """Number of segments by state: ``own``, ``continued`` or ``pooled``."""


class SegmentEntry(Model):
    """A segment in a version."""

    segment: str
    state: str
    """``own``, ``continued`` from the pooled model, or ``pooled``."""
    reason: str
    rows: int
    """Training rows."""
    loss: Number
    """Mean loss on held-out rows of the segment."""
    pooled_loss: Number
    """The pooled model's on the same rows."""
    losses: list[Number]
    """The losses in ``FleetPage.versions``, in their order; null in a version without the segment."""
    drifted: bool
    """Whether the newest comparison found that its data have changed."""


class FleetPage(Model):
    """The segments of a version, by rows × loss from the largest."""

    segment: str | None
    """The segment's column; null if the model is not a fleet."""
    loss: str
    """The loss in words."""
    version: int | None
    versions: list[FleetVersion]
    """The newest versions, oldest first."""
    drifted: int
    """Number of segments whose data have changed."""
    total_entries: int
    """Number of segments that match."""
    entries: list[SegmentEntry]


class SegmentVersion(Model):
    """A segment in a version."""

    version: int
    at: Time
    state: str
    reason: str
    rows: int
    loss: Number
    pooled_loss: Number
    is_new_model: bool
    """Whether another model answers it than in the version before."""


class SegmentDrift(ArtifactAddress):
    """A finding about the data of a segment, and the comparison that made it."""

    at: Time
    words: str
    group: str
    """The group that changed together, such as ``region=North``; empty if it is the segment alone."""
    columns: list[str]


class SegmentDecision(Model):
    """A decision on a version in which the segment has another model than in the version before."""

    at: Time
    event: str
    version: int
    why: str


class SegmentStory(Model):
    """Events of a segment, oldest first."""

    segment: str
    versions: list[SegmentVersion]
    drifts: list[SegmentDrift]
    decisions: list[SegmentDecision]


def _tables(user: GetUserDep, served: ServedModelOf, record: ModelRecord) -> dict[int, tuple[Time, SegmentTable]]:
    """Returns the newest versions that are fleets, oldest first, without those that are gone or not to be read."""
    may_read, hook = MayRead(user, DagAccessEntity.XCOM), served.hook
    events = {version: event for version, event in record.registered().items() if event.model and event.fingerprint}

    def read(version: int) -> SegmentTable | None:
        event = events[version]
        try:
            artifact = FoundArtifact.open(hook, Artifact(str(event.model), "model", str(event.fingerprint)))
        except HTTPException as error:
            if error.status_code == 410:
                return None
            raise
        if artifact.manifest.producer.dag_id not in may_read or not artifact.has(SUMMARY_FILE):
            return None
        try:
            return SegmentTable.from_dict(artifact.read_json(SUMMARY_FILE))
        except TypeError as error:
            raise artifact.damaged(SUMMARY_FILE, error) from error

    newest = sorted(events)[-_VERSIONS:]
    with reading_threads() as threads:
        tables = list(threads.map(read, newest))
    return {
        version: (events[version].at, table)  # type: ignore[misc]  # read from ISO 8601
        for version, table in zip(newest, tables, strict=True)
        if table is not None
    }


def _comparisons(user: GetUserDep, served: ServedModelOf) -> list[ReturnedArtifact]:
    """Returns comparisons of the fleet's segments by pipelines that the user may read, newest first."""
    may_read = MayRead(user, DagAccessEntity.XCOM)
    with create_session() as session:
        pipelines = together(read_pipelines(session).values(), [(served.hops_conn_id, served.name)])
        dag_ids = [each.dag_id for each in pipelines if each.dag_id in may_read]
        returned = last_returned(session, dag_ids, "fleet_skew", _COMPARISONS)
    return [each for each in returned if FleetSkewProperties.of(each.artifact).model_name == served.name]


@router.get("/applies")
def is_fleet(user: GetUserDep, served: Served) -> bool:
    """Returns whether the model is a fleet, whose segments have a tab."""
    return bool(_tables(user, served, read_model_record(served.hook.store, served.name)))


@router.get("")
def get_fleet(
    user: GetUserDep,
    served: Served,
    version: Annotated[int | None, Query(ge=1)] = None,
    search: Annotated[str, Query(max_length=200, description="Part of the keys, in any case")] = "",
    state: Annotated[list[str] | None, Query(description="States of the segments")] = None,
    only_drifted: Annotated[bool, Query(description="Whether only segments whose data changed are returned")] = False,
    limit: Limit = 24,
    offset: Offset = 0,
) -> FleetPage:
    """Returns segments of a version, or of the newest; ``segment`` is null if the model is not a fleet."""
    tables = _tables(user, served, read_model_record(served.hook.store, served.name))
    versions = [
        FleetVersion(version=number, at=since, states=dict(Counter(table.states)))
        for number, (since, table) in tables.items()
    ]
    if not tables:
        return FleetPage(segment=None, loss="", version=None, versions=[], drifted=0, total_entries=0, entries=[])
    shown = max(tables) if version is None else version
    if shown not in tables:
        raise HTTPException(404, f"version {shown} of model {served.name!r} is not among {', '.join(map(str, tables))}")
    table = tables[shown][1]
    newest = next(iter(_comparisons(user, served)), None)
    drifted = set(FleetSkewProperties.of(newest.artifact).segments) if newest else set()
    wanted = search.casefold()
    chosen = [
        row
        for row, key in enumerate(table.segments)
        if wanted in key.casefold()
        and (not state or table.states[row] in state)
        and (not only_drifted or key in drifted)
    ]
    chosen.sort(key=lambda row: (-table.rows[row] * (table.losses[row] or 0.0), table.segments[row]))
    page = chosen[offset : offset + limit]
    losses: dict[str, list[float | None]] = {table.segments[row]: [] for row in page}
    for _, each in tables.values():
        known = dict(zip(each.segments, each.losses, strict=True))
        for key, values in losses.items():
            values.append(known.get(key))
    return FleetPage(
        segment=table.segment,
        loss=table.loss,
        version=shown,
        versions=versions,
        drifted=len(drifted.intersection(table.segments)),
        total_entries=len(chosen),
        entries=[
            SegmentEntry(
                segment=(key := table.segments[row]),
                state=table.states[row],
                reason=table.reasons[row],
                rows=table.rows[row],
                loss=table.losses[row],
                pooled_loss=table.pooled_losses[row],
                losses=losses[key],
                drifted=key in drifted,
            )
            for row in page
        ],
    )


@router.get("/segment")
def get_fleet_segment(user: GetUserDep, served: Served, key: Key) -> SegmentStory:
    """Returns the story of a segment: its models by version, drifts of its data, and decisions on its new models.

    Raises:
        HTTPException: 404, no version has the segment.
    """
    record = read_model_record(served.hook.store, served.name)
    versions: list[SegmentVersion] = []
    digest: str | None = None
    for version, (since, table) in _tables(user, served, record).items():
        if key not in table.segments:
            continue
        row = list(table.segments).index(key)
        versions.append(
            SegmentVersion(
                version=version,
                at=since,
                state=table.states[row],
                reason=table.reasons[row],
                rows=table.rows[row],
                loss=table.losses[row],
                pooled_loss=table.pooled_losses[row],
                is_new_model=not versions or (versions[-1].state, digest) != (table.states[row], table.digests[row]),
            )
        )
        digest = table.digests[row]
    if not versions:
        raise HTTPException(404, f"no version of model {served.name!r} has the segment {key!r}")
    changed = {each.version for each in versions if each.is_new_model}
    return SegmentStory(
        segment=key,
        versions=versions,
        drifts=_drifts(user, _comparisons(user, served), key),
        decisions=[
            SegmentDecision(at=event.at, event=event.event, version=event.version, why=event.why)  # type: ignore[arg-type]
            for event in record.history
            if event.version in changed and event.event in ("deployed", "canary", "promoted", "rolled_back")
        ],
    )


def _drifts(user: GetUserDep, comparisons: list[ReturnedArtifact], key: str) -> list[SegmentDrift]:
    """Returns the findings that name a segment, oldest first, without those of deleted comparisons."""
    drifts = []
    for each in reversed(comparisons):
        if key not in FleetSkewProperties.of(each.artifact).segments:
            continue
        try:
            artifact = open_returned(user, each)
        except HTTPException as error:
            if error.status_code in (403, 410):
                continue
            raise
        for finding in artifact.read_json(FINDINGS_FILE)["findings"]:
            if key in finding["segments"]:
                drifts.append(
                    SegmentDrift(
                        **returned_address(each).model_dump(),
                        at=each.at,
                        **{name: finding[name] for name in ("words", "group", "columns")},
                    )
                )
    return drifts
