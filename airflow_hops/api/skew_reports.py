"""Reports of comparisons, read once each: what they say of features, less the histograms."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import HTTPException

from airflow_hops.api.caching import ByteCache
from airflow_hops.api.lookup import open_artifact, reaching
from airflow_hops.artifacts import Artifact
from airflow_hops.store import ArtifactStore

REPORT_FILE = "report.json"
_READERS = 8
"""Threads that read reports: a store far away takes its time for each."""
_LARGE = ("histogram_reference", "histogram_current", "common_histogram")
_digests = ByteCache(64 << 20)


def digest(store: ArtifactStore, artifact: Artifact) -> dict[str, Any]:
    """A report without histograms and without examples of rows.

    Raises:
        HTTPException: 410, it was deleted or replaced; 502, the store cannot be read.
    """
    content = _digests.get(artifact.fingerprint, lambda: _digest(store, artifact))
    value: dict[str, Any] = json.loads(content)
    return value


def features_of(
    store: ArtifactStore, artifacts: Sequence[Artifact], feature: str
) -> list[Mapping[str, Any] | HTTPException | None]:
    """What each report says of a feature; None where it has none such, and why where it cannot be read."""

    def read(artifact: Artifact) -> Mapping[str, Any] | HTTPException | None:
        try:
            found: Mapping[str, Any] | None = digest(store, artifact)["features"].get(feature)
        except HTTPException as error:
            return error
        return found

    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(read, artifacts))


def read_report(store: ArtifactStore, artifact: Artifact) -> dict[str, Any]:
    """The whole report.

    Raises:
        HTTPException: as :func:`digest`.
    """
    there, _ = open_artifact(store, artifact)
    uri = f"{there.uri}/{REPORT_FILE}"
    with reaching(store):
        try:
            value: dict[str, Any] = json.loads(store.read_text(uri))
        except FileNotFoundError:
            raise HTTPException(410, f"{uri} was deleted") from None
        except ValueError as error:
            raise HTTPException(502, f"{uri} is not JSON ({error})") from error
    return value


def _digest(store: ArtifactStore, artifact: Artifact) -> bytes:
    report = read_report(store, artifact)
    for skew in report["features"].values():
        for name in _LARGE:
            skew.pop(name, None)
    for skew in (report.get("row_skew") or {}).get("features", {}).values():
        skew.pop("examples", None)
    (report.get("row_skew") or {}).pop("confusion", None)
    return json.dumps(report).encode()
