"""Lineage: from an artifact or served version back to its sources, and forward to artifacts made from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Literal

from fastapi import APIRouter, HTTPException

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.artifacts.artifact import Manifest, total_rows
from airflow_hops.core.lineage import links_of
from airflow_hops.core.models.model_record import ModelRecord
from airflow_hops.core.store import ArtifactStore
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, MayRead, ReadableDags
from airflow_hops.web.artifacts.lookup import TaskArtifact, hook_of
from airflow_hops.web.artifacts.routes import ArtifactAddress, address_of, returned_address
from airflow_hops.web.artifacts.tasks import PipelineDag, ReturnedArtifact, read_pipelines, returned_by_dags
from airflow_hops.web.lineage.starts import DeployedVersion
from airflow_hops.web.lineage.walk import Key, Opened, walk_back, walk_on
from airflow_hops.web.models.records import read_model_record
from airflow_hops.web.types import Facts, Model, Number, RunAddress, Time

router = APIRouter(
    prefix="/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}",
    tags=["lineage"],
    dependencies=[READS_RUNS, READS_ARTIFACTS],
)
_CANDIDATES = 3000
"""Number of newest artifacts that are searched for those made from one."""
_RUNS = 20
Records = Mapping[str, ModelRecord]
"""Records by model."""


class LineageNode(Model):
    """An artifact. For one of a DAG that the user may not read, only the kind is set."""

    id: str
    kind: str
    state: Literal["present", "deleted", "unreachable", "hidden"]
    detail: str | None
    address: ArtifactAddress | None
    """Task instance that made it; null if unknown."""
    fingerprint: str | None
    runs: list[RunAddress]
    """Runs that hold it, newest first."""
    created_at: Time | None = None
    size_bytes: int | None = None
    files: int | None = None
    rows: int | None = None
    """Total rows, each counted once."""
    window: list[str | None] | None = None
    """Time window of the rows."""
    metrics: dict[str, Number] = {}
    facts: Facts = {}
    cached: bool = False
    """Whether the requested run reused it from an earlier one."""
    served: list[DeployedVersion] = []


class LineageEdge(Model):
    """A link from an artifact to one made from it."""

    source: str
    target: str
    role: str


class Lineage(Model):
    """An artifact, its sources, and the artifacts made from it."""

    focus: str
    nodes: list[LineageNode]
    edges: list[LineageEdge]
    is_whole: bool
    """False if there are too many artifacts to send."""
    notes: list[str]
    """Explanations of unknown origins."""


@router.get("/lineage")
def get_lineage(found: TaskArtifact, user: GetUserDep, readable: ReadableDags, dag_id: str, run_id: str) -> Lineage:
    """Returns the sources of an artifact, back to the first data, and the artifacts made from it."""
    allowed = MayRead(user, DagAccessEntity.XCOM)
    shares = _sharing(found.store)
    with create_session() as session:
        pipelines = list(read_pipelines(session, list(readable)).values())
        sharing = [each for each in pipelines if each.dag_id in allowed and shares(each)]
        returned = returned_by_dags(session, [each.dag_id for each in sharing], _CANDIDATES)

    def may_see(manifest: Manifest) -> bool:
        return manifest.producer.dag_id in allowed

    start = Opened(found.reference, found.manifest)
    sources, source_links, has_sources = walk_back(found.store, start, may_see)
    results, result_links, has_results = walk_on(found.store, start, [each.artifact for each in returned], may_see)
    opened, links = {**sources, **results}, {**source_links, **result_links}
    holders: dict[Key, list[ReturnedArtifact]] = {}
    for each in returned:
        holders.setdefault((each.artifact.uri, each.artifact.fingerprint), []).append(each)
    models = {name for pipeline in sharing for _, name in pipeline.models()}
    records, unread = dict[str, ModelRecord](), []
    for name in sorted(models):
        try:
            records[name] = read_model_record(found.store, name)
        except HTTPException as error:
            unread.append(f"Served versions of {name} are not known, because {error.detail}.")
    asked = (dag_id, run_id)
    names = {}  # ids of nodes; those of hidden ones reveal nothing
    for number, (key, node) in enumerate(opened.items()):
        hidden = node.manifest is not None and not may_see(node.manifest)
        digest = hashlib.sha256("\n".join(node.key).encode()).hexdigest()[:16]
        names[key] = f"hidden-{number}" if hidden else digest
    nodes = [_node(names[key], node, may_see, holders.get(key, []), records, asked) for key, node in opened.items()]
    edges = [
        LineageEdge(source=names[source], target=names[target], role=link.role)
        for (source, target), link in links.items()
    ]
    is_whole = has_sources and has_results
    return Lineage(
        focus=names[start.key],
        nodes=nodes,
        edges=edges,
        is_whole=is_whole,
        notes=[*_notes(opened.values(), len(returned)), *unread],
    )


def _sharing(store: ArtifactStore) -> Callable[[PipelineDag], bool]:
    """Returns a predicate for pipelines that use a store; unreadable connections use none."""

    @cache
    def is_same(conn_id: str) -> bool:
        try:
            return hook_of(conn_id).store.root == store.root
        except HTTPException:
            return False

    return lambda pipeline: any(is_same(task.hops_conn_id) for task in pipeline.tasks)


def _node(
    name: str,
    opened: Opened,
    may_see: Callable[[Manifest], bool],
    holders: list[ReturnedArtifact],
    records: Records,
    asked: tuple[str, str],
) -> LineageNode:
    manifest, artifact = opened.manifest, opened.artifact
    hidden = manifest is not None and not may_see(manifest)
    if hidden or manifest is None:
        # The maker of a missing artifact is only known from the runs that hold it, which the user may read.
        made = next((each for each in reversed(holders) if not each.artifact.cached), None)
        return LineageNode(
            id=name,
            kind=artifact.kind,
            state="hidden" if hidden else opened.state,
            detail=None if hidden or not holders else opened.detail,  # it has the address, and so the DAG
            address=None if hidden or made is None else returned_address(made),
            fingerprint=None if hidden or not holders else artifact.fingerprint,
            runs=[] if hidden else _runs(holders),
        )
    properties = manifest.properties
    rows = total_rows(manifest.rows, properties)
    window = properties.get("window")
    return LineageNode.of(
        manifest,
        id=name,
        state="present",
        detail=None,
        address=address_of(manifest),
        size_bytes=sum(file.size_bytes for file in manifest.files),
        files=len(manifest.files),
        rows=None if rows is None else rows.rows_out,
        window=list(window) if isinstance(window, list | tuple) else None,
        facts={name: properties[name] for name in _FACTS if name in properties},
        cached=any((each.dag_id, each.run_id) == asked and each.artifact.cached for each in holders),
        runs=_runs(holders),
        served=_served(manifest, records),
    )


_FACTS = (
    "model_name", "version", "mode", "decision", "blessed", "verdict", "label", "problem", "classes", "framework",
    "splits", "train", "ranks",
)  # fmt: skip
"""Properties that distinguish artifacts of a kind."""


def _runs(holders: Iterable[ReturnedArtifact]) -> list[RunAddress]:
    runs = dict.fromkeys((each.dag_id, each.run_id) for each in holders)
    return [RunAddress(dag_id=dag_id, run_id=run_id) for dag_id, run_id in list(runs)[:_RUNS]]


def _served(manifest: Manifest, records: Records) -> list[DeployedVersion]:
    """Returns the versions of a model, or of a deployment's model, that serve; if none does, the last that served."""
    serving, former = [], []
    facts = manifest.properties
    brought = (facts.get("model_name"), facts.get("version"))
    for model, record in records.items():
        for role, version in record.serving.items():
            if version.fingerprint == manifest.fingerprint or brought == (model, version.version):
                share = record.traffic.get(version.version, 0)
                serving.append(DeployedVersion(model=model, version=version.version, role=role, traffic_percent=share))
        for number, event in record.registered().items():
            is_deployment = manifest.kind == "deployment" and brought == (model, number)
            if event.fingerprint == manifest.fingerprint or is_deployment:
                former.append(DeployedVersion(model=model, version=number, role="former", traffic_percent=0))
    return serving or former[-1:]


def _notes(opened: Iterable[Opened], candidates: int) -> list[str]:
    manifests = [each.manifest for each in opened if each.manifest is not None]
    sources = {manifest.kind for manifest in manifests if not links_of(manifest)}
    notes = []
    if "snapshot" in sources:
        notes.append(
            "The origin of a snapshot's rows is only known to its task: data outside of the store has no manifest."
        )
    if any(manifest.kind == "skew" and not manifest.inputs.keys() & {"captured", "current"} for manifest in manifests):
        notes.append(
            "The captured requests of a skew report are not an artifact; the report names the training "
            "statistics they were compared with."
        )
    if candidates >= _CANDIDATES:
        notes.append(f"Artifacts made from this one were searched for among the newest {_CANDIDATES:,} artifacts.")
    return notes
