"""The segments of a served fleet: those that matter first, and the story of one of them."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, HTTPException, Query

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.extensions.fleet.core.options import FINDINGS_FILE, FleetSkewProperties
from airflow_hops.extensions.fleet.core.summary import SUMMARY_FILE, SegmentTable, statistics_file
from airflow_hops.web.access import READS_ARTIFACTS, MayRead
from airflow_hops.web.artifacts.lookup import FoundArtifact, Gone, open_returned
from airflow_hops.web.artifacts.routes import ArtifactAddress
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
_FAILED = "failed: "
"""Beginning of the reason of a segment whose training failed."""

Key = Annotated[str, Query(min_length=1, max_length=1024, description="Key of the segment")]


class FleetVersion(Model):
    """A version of a fleet that served."""

    version: int
    at: Time
    """When it first came to serve."""
    states: dict[str, int]
    """Number of segments by state: ``own``, ``continued`` or ``pooled``."""


class SegmentModel(Model):
    """The model that answers a segment in a version."""

    state: str
    """``own``, ``continued`` from the pooled model, or ``pooled``."""
    reason: str
    rows: int
    """Training rows."""
    loss: Number
    """Mean loss on held-out rows of the segment."""
    pooled_loss: Number
    """The pooled model's on the same rows."""


class SegmentEntry(SegmentModel):
    """A segment in a version."""

    segment: str
    losses: list[Number]
    """The losses in ``FleetPage.versions``, in their order; null in a version without the segment."""
    drifted: bool
    """Whether the newest comparison found that its data have changed."""
    failed: bool
    """Whether its training failed; ``reason`` has the error."""


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
    failed: int
    """Number of segments whose training failed."""
    total_entries: int
    """Number of segments that match."""
    entries: list[SegmentEntry]


class SegmentVersion(SegmentModel):
    """A segment in a version."""

    version: int
    at: Time
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


class SegmentColumn(Model):
    """Statistics of a column in the training rows of a segment."""

    missing: int
    """Rows without a value."""
    counts: list[int]
    """Rows by value, and last those of all others; of a number, rows up to each of ``edges``, and above them."""
    values: list[str] = []
    """The most frequent values of a category."""
    edges: list[float] = []
    """Deciles of a number, each once."""
    mean: Number = None
    deviation: Number = None
    least: Number = None
    greatest: Number = None


class SegmentStatistics(Model):
    """Statistics of the training rows of a segment in a version."""

    version: int
    groups: dict[str, str | None]
    """The segment's groups, by column."""
    statistics: dict[str, SegmentColumn]


class _Version(NamedTuple):
    at: Any
    table: SegmentTable
    artifact: FoundArtifact

    def row(self, key: str) -> int | None:
        return self.table.segment.index(key) if key in self.table.segment else None


def _versions(user: GetUserDep, served: Served) -> dict[int, _Version]:
    """Returns the newest versions that are fleets, oldest first, without those that are gone or not to be read."""
    may_read, record = MayRead(user, DagAccessEntity.XCOM), read_model_record(served.hook.store, served.name)
    events = {version: event for version, event in record.registered().items() if event.model and event.fingerprint}

    def read(version: int) -> _Version | None:
        event = events[version]
        try:
            artifact = FoundArtifact.open(served.hook, Artifact(str(event.model), "model", str(event.fingerprint)))
        except Gone:
            return None
        if artifact.manifest.producer.dag_id not in may_read or not artifact.has(SUMMARY_FILE):
            return None
        with artifact.reading(SUMMARY_FILE):
            return _Version(event.at, SegmentTable.from_dict(artifact.read_json(SUMMARY_FILE)), artifact)

    newest = sorted(events)[-_VERSIONS:]
    with reading_threads() as threads:
        versions = zip(newest, threads.map(read, newest), strict=True)
        return {number: version for number, version in versions if version is not None}


Versions = Annotated[dict[int, _Version], Depends(_versions)]


def _chosen(served: ServedModelOf, versions: dict[int, _Version], version: int | None) -> int:
    """Returns the version, or the newest. Raises HTTPException (404) if there is no such fleet."""
    if (number := version or max(versions, default=0)) not in versions:
        listed = ", ".join(map(str, versions)) or "none"
        raise HTTPException(404, f"version {number} of model {served.name!r} is not among {listed}")
    return number


def _comparisons(user: GetUserDep, served: ServedModelOf) -> list[ReturnedArtifact]:
    """Returns comparisons of the fleet's segments by pipelines that the user may read, newest first."""
    may_read = MayRead(user, DagAccessEntity.XCOM)
    with create_session() as session:
        pipelines = together(read_pipelines(session).values(), [served.model])
        dag_ids = [each.dag_id for each in pipelines if each.dag_id in may_read]
        returned = last_returned(session, dag_ids, "fleet_skew", _COMPARISONS)
    return [each for each in returned if FleetSkewProperties.of(each.artifact).model_name == served.name]


@router.get("/applies")
def is_fleet(versions: Versions) -> bool:
    """Returns whether the model is a fleet, whose segments have a tab."""
    return bool(versions)


@router.get("")
def get_fleet(
    user: GetUserDep,
    served: Served,
    versions: Versions,
    version: Annotated[int | None, Query(ge=1)] = None,
    search: Annotated[str, Query(max_length=200, description="Part of the keys, in any case")] = "",
    state: Annotated[list[str] | None, Query(description="States of the segments")] = None,
    only_drifted: Annotated[bool, Query(description="Whether only segments whose data changed are returned")] = False,
    only_failed: Annotated[bool, Query(description="Whether only segments whose training failed are returned")] = False,
    limit: Limit = 24,
    offset: Offset = 0,
) -> FleetPage:
    """Returns segments of a version, or of the newest; ``segment`` is null if the model is not a fleet."""
    table = versions[_chosen(served, versions, version)].table if versions else SegmentTable(None, "")
    newest = next(iter(_comparisons(user, served)), None)
    drifted = set(FleetSkewProperties.of(newest.artifact).segments) if newest else set()
    failed = {key for key, reason in zip(table.segment, table.reason, strict=True) if reason.startswith(_FAILED)}
    wanted = search.casefold()
    chosen = [
        row
        for row, key in enumerate(table.segment)
        if wanted in key.casefold()
        and (not state or table.state[row] in state)
        and (not only_drifted or key in drifted)
        and (not only_failed or key in failed)
    ]
    chosen.sort(key=lambda row: (-table.rows[row] * (table.loss[row] or 0.0), table.segment[row]))
    losses = [dict(zip(each.table.segment, each.table.loss, strict=True)) for each in versions.values()]
    return FleetPage(
        segment=table.column,
        loss=table.loss_in_words,
        version=(version or max(versions)) if versions else None,
        versions=[
            FleetVersion(version=number, at=each.at, states=dict(Counter(each.table.state)))
            for number, each in versions.items()
        ],
        drifted=len(drifted.intersection(table.segment)),
        failed=len(failed),
        total_entries=len(chosen),
        entries=[
            SegmentEntry(
                **table.row(row),
                losses=[each.get(table.segment[row]) for each in losses],
                drifted=table.segment[row] in drifted,
                failed=table.segment[row] in failed,
            )
            for row in chosen[offset : offset + limit]
        ],
    )


@router.get("/segment")
def get_fleet_segment(user: GetUserDep, served: Served, versions: Versions, key: Key) -> SegmentStory:
    """Returns the story of a segment: its models by version, drifts of its data, and decisions on its new models.

    Raises:
        HTTPException: 404, no version has the segment.
    """
    models: list[SegmentVersion] = []
    model: tuple[str, str | None] | None = None
    for number, each in versions.items():
        if (row := each.row(key)) is not None:
            previous, model = model, (each.table.state[row], each.table.digest[row])
            facts = each.table.row(row)
            models.append(SegmentVersion(version=number, at=each.at, is_new_model=model != previous, **facts))
    if not models:
        raise HTTPException(404, f"no version of model {served.name!r} has the segment {key!r}")
    changed = {each.version for each in models if each.is_new_model}
    return SegmentStory(
        segment=key,
        versions=models,
        drifts=_drifts(user, _comparisons(user, served), key),
        decisions=[
            SegmentDecision.of(event)
            for event in read_model_record(served.hook.store, served.name).history
            if event.version in changed and event.event in ("deployed", "canary", "promoted", "rolled_back")
        ],
    )


@router.get("/statistics")
def get_segment_statistics(
    served: Served, versions: Versions, key: Key, version: Annotated[int | None, Query(ge=1)] = None
) -> SegmentStatistics:
    """Returns statistics of the training rows of a segment in a version, or in the newest.

    Raises:
        HTTPException: 404, the version has no statistics of the segment.
    """
    number = _chosen(served, versions, version)
    row, artifact = versions[number].row(key), versions[number].artifact
    known = {} if row is None else artifact.read_json(statistics_file(row))
    if key not in known:
        raise HTTPException(404, f"version {number} of model {served.name!r} has no statistics of the segment {key!r}")
    return SegmentStatistics(version=number, **known[key])


def _drifts(user: GetUserDep, comparisons: list[ReturnedArtifact], key: str) -> list[SegmentDrift]:
    """Returns the findings that name a segment, oldest first, without those of deleted comparisons."""
    drifts = []
    for each in reversed(comparisons):
        properties = FleetSkewProperties.of(each.artifact)
        if key not in (*properties.segments, *properties.silent):
            continue
        try:
            artifact = open_returned(user, each)
        except HTTPException as error:
            if error.status_code in (403, 410):
                continue
            raise
        for finding in artifact.read_json(FINDINGS_FILE)["findings"]:
            if key in finding["segments"]:
                facts = {name: finding[name] for name in ("words", "group", "columns")}
                drifts.append(SegmentDrift.of(each, each.artifact, **facts))
    return drifts
