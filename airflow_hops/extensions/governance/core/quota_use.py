"""Use of machines and of the store by the steps of each DAG, from the manifests of their artifacts."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import astuple
from datetime import UTC, datetime, timedelta

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME, Manifest, name_in
from airflow_hops.core.errors import HopsError, UnreadableText
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.store.integrity import inner_manifests
from airflow_hops.core.times import as_utc, now, seconds_since
from airflow_hops.extensions.governance.core.quota_limits import DAYS, Quotas, QuotaShare, Used

_THREADS = 16
_NOTES = ("_state", "used")
_SUMS_S = 300.0
"""Seconds for which sums are used again, so that not every step reads all manifests of a store."""
_NEAR_PERCENT = 90.0
"""Share of a limit from which sums are not used again."""


def read_manifests(store: ArtifactStore, uris: Iterable[str], problems: list[str]) -> Iterator[Manifest]:
    """Yields the manifests of artifacts; manifests among the files of an artifact are data, and left out.

    Args:
        store: The store.
        uris: Addresses of the artifacts, sorted.
        problems: Gets the messages about those that cannot be read.
    """

    def read(uri: str) -> tuple[str, Manifest | HopsError]:
        try:
            return uri, store.manifest(uri)
        except HopsError as error:
            return uri, error

    inner: set[str] = set()
    with ThreadPoolExecutor(_THREADS) as readers:  # for the round trips of a remote store
        for uri, manifest in map(read, uris) if store.is_local else readers.map(read, uris):
            if f"{uri}/{MANIFEST_NAME}" in inner:
                continue
            if isinstance(manifest, HopsError):
                if store.exists(uri):  # otherwise it was removed since it was listed
                    problems.append(str(manifest))
                continue
            inner |= inner_manifests(uri, manifest)
            yield manifest


def use_of(manifest: Manifest) -> Used:
    """Returns the use of resources by the step of an artifact."""
    size_bytes = sum(file.size_bytes for file in manifest.files)
    return Used(manifest.cost.get("core_s", 0.0), manifest.cost.get("gpu_s", 0.0), size_bytes)


def note_use(store: ArtifactStore, uri: str) -> None:
    """Notes the use of a step by its artifact, which sums of up to five minutes ago lack."""
    manifest = store.manifest(uri)
    figures = "@".join(f"{figure:.3f}" for figure in astuple(use_of(manifest)))
    store.write_text(f"{store.internal(*_NOTES, manifest.producer.dag_id)}/{figures}@{uuid.uuid4().hex}", "")


def sum_usage(store: ArtifactStore, problems: list[str]) -> dict[str, Used]:
    """Returns the use of resources by the steps of each DAG; ``problems`` is as in :func:`read_manifests`."""
    since, sums = datetime.now(UTC) - timedelta(days=DAYS), dict[str, Used]()
    for manifest in read_manifests(store, store.artifacts(store.root), problems):
        used = use_of(manifest)
        if as_utc(manifest.created_at) < since:
            used = Used(size_bytes=used.size_bytes)
        sums[manifest.producer.dag_id] = sums.get(manifest.producer.dag_id, Used()) + used
    return sums


def shares_of(store: ArtifactStore, quotas: Quotas, dag_id: str, problems: list[str]) -> list[QuotaShare]:
    """Returns the use of the limits of a DAG and of the team.

    Sums of up to five minutes ago are used again, with the notes since, unless that is near a limit. ``problems`` is as
    in :func:`read_manifests`.
    """
    if not quotas.shares(dag_id, {}):
        return []
    # Notes are listed before the sums, and removed after sums with them were written: one may count twice for a moment,
    # which only sums anew, but none is missing.
    uri, time, folder = store.internal("_state", "usage.json"), now(), store.internal(*_NOTES)
    notes = [(dag, name) for dag in store.names(folder) for name in store.names(f"{folder}/{dag}")]
    notes = [(dag, name) for dag, name in notes if not name.startswith(".")]  # being written
    with suppress(FileNotFoundError, UnreadableText, KeyError, TypeError):
        sums = store.read_json(uri)
        if 0 <= seconds_since(sums["at"]) < _SUMS_S:
            used = {name: Used(*values) for name, values in sums["dags"].items()}
            for dag, name in notes:
                used[name_in(dag)] = used.get(name_in(dag), Used()) + Used(*map(float, name.split("@")[:3]))
            shares = quotas.shares(dag_id, used)
            if all(each.percent < _NEAR_PERCENT for each in shares):
                return shares
    used = sum_usage(store, problems)
    sums = {"at": time, "dags": {name: astuple(values) for name, values in used.items()}}
    store.write_text(uri, json.dumps(sums))
    for dag, name in notes:
        store.remove_text(f"{folder}/{dag}/{name}")
    return quotas.shares(dag_id, used)
