"""Reports of comparisons. What they say of features, less the histograms, is cached.

Of thousands of features a report has tens of megabytes, nearly all of them histograms.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from cachetools import LRUCache, cached
from fastapi import HTTPException

from airflow_hops.core.contract.artifacts import Artifact
from airflow_hops.core.store import ArtifactStore
from airflow_hops.web.artifacts.lookup import open_artifact, reaching
from airflow_hops.web.unusable_files import reading_threads

REPORT_FILE = "report.json"
_HISTOGRAMS = {"histogram_reference", "histogram_current", "common_histogram"}
_digests: LRUCache[str, bytes] = LRUCache(64 << 20, getsizeof=len)


def digest(store: ArtifactStore, artifact: Artifact) -> dict[str, Any]:
    """Returns a report without histograms.

    Raises:
        HTTPException: as :func:`read_report`.
    """
    report: dict[str, Any] = json.loads(_digest(store, artifact))
    return report


def features_of(
    store: ArtifactStore, artifacts: Sequence[Artifact], feature: str
) -> list[Mapping[str, Any] | HTTPException | None]:
    """Returns each report's figures of a feature; None if it has no such feature, or why it cannot be read."""

    def read(artifact: Artifact) -> Mapping[str, Any] | HTTPException | None:
        try:
            figures: Mapping[str, Any] | None = digest(store, artifact)["features"].get(feature)
            return figures
        except HTTPException as error:
            return error

    with reading_threads() as readers:
        return list(readers.map(read, artifacts))


def read_report(store: ArtifactStore, artifact: Artifact) -> dict[str, Any]:
    """Returns the whole report.

    Raises:
        HTTPException: 410, it was deleted or replaced; 502, the store or the report cannot be read.
    """
    there, _ = open_artifact(store, artifact)
    uri = f"{there.uri}/{REPORT_FILE}"
    with reaching(store):
        try:
            report: dict[str, Any] = store.read_json(uri)
            return report
        except FileNotFoundError:
            raise HTTPException(410, f"{uri} was deleted") from None


@cached(_digests, key=lambda store, artifact: artifact.fingerprint, condition=threading.Condition())
def _digest(store: ArtifactStore, artifact: Artifact) -> bytes:
    report = read_report(store, artifact)
    features = {
        name: {field: value for field, value in figures.items() if field not in _HISTOGRAMS}
        for name, figures in report["features"].items()
    }
    return json.dumps({**report, "features": features}).encode()
