"""Reports of comparisons, read once each: what they say of features, less the histograms.

Of thousands of features a report has tens of megabytes, nearly all of them histograms, and parsing it takes a good part
of a second: of its text only what is asked for is parsed, where it is laid out as the step lays it out.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import HTTPException

from airflow_hops.core.contract.artifacts import Artifact, UnreadableFile, parse_json
from airflow_hops.core.store import ArtifactStore
from airflow_hops.web.artifacts.lookup import open_artifact, reaching
from airflow_hops.web.caching import ByteCache
from airflow_hops.web.unusable_files import reading_threads

REPORT_FILE = "report.json"
_READERS = 8
"""Threads that read reports: a store far away takes its time for each."""
_HISTOGRAM = re.compile(r'("(?:histogram_reference|histogram_current|common_histogram)": )\[\n(?:    .*\n)*   \]')
_FEATURES, _END = '\n "features": {\n', "\n }"
_DECODER = json.JSONDecoder()
_digests = ByteCache(64 << 20)


def digest(store: ArtifactStore, artifact: Artifact) -> dict[str, Any]:
    """A report without histograms.

    Raises:
        HTTPException: as :func:`read_report`.
    """
    return _parsed(_digest(store, artifact), artifact)


def features_of(
    store: ArtifactStore, artifacts: Sequence[Artifact], feature: str
) -> list[Mapping[str, Any] | HTTPException | None]:
    """What each report says of a feature; None where it has none such, and why where it cannot be read."""

    def read(artifact: Artifact) -> Mapping[str, Any] | HTTPException | None:
        try:
            return _feature_in(_digest(store, artifact), artifact, feature)
        except HTTPException as error:
            return error

    with reading_threads(_READERS) as readers:
        return list(readers.map(read, artifacts))


def read_report(store: ArtifactStore, artifact: Artifact, feature: str) -> dict[str, Any]:
    """The report with a single feature, histograms included; with none where it has none such.

    Raises:
        HTTPException: 410, it was deleted or replaced; 502, the store cannot be read.
    """
    text = _read(store, artifact)
    start, end = _bounds(text)
    found = _feature_in(text, artifact, feature)
    report = _parsed(f"{text[:start]}{text[end:]}", artifact)
    return {**report, "features": {} if found is None else {feature: found}}


def _digest(store: ArtifactStore, artifact: Artifact) -> str:
    def make() -> bytes:
        return zlib.compress(_HISTOGRAM.sub(r"\g<1>null", _read(store, artifact)).encode(), level=1)

    return zlib.decompress(_digests.get(artifact.fingerprint, make)).decode()


def _read(store: ArtifactStore, artifact: Artifact) -> str:
    there, _ = open_artifact(store, artifact)
    uri = f"{there.uri}/{REPORT_FILE}"
    with reaching(store):
        try:
            return store.read_text(uri)
        except FileNotFoundError:
            raise HTTPException(410, f"{uri} was deleted") from None


def _bounds(text: str) -> tuple[int, int]:
    """Where the features begin and end; both are 0 where they cannot be told from the rest."""
    found = text.find(_FEATURES)
    start = found + len(_FEATURES) - 1  # the line break before the first
    end = text.find(_END, start) if found >= 0 else -1
    return (start, end) if end >= 0 else (0, 0)


def _feature_in(text: str, artifact: Artifact, name: str) -> dict[str, Any] | None:
    start, end = _bounds(text)
    if not end:
        found: dict[str, Any] | None = _parsed(text, artifact)["features"].get(name)
        return found
    key = f"\n  {json.dumps(name)}: "
    at = text.find(key, start, end)
    if at < 0:
        return None
    try:
        found, _ = _DECODER.raw_decode(text, at + len(key))
    except (ValueError, RecursionError) as error:
        raise HTTPException(502, f"{artifact.uri}/{REPORT_FILE} is not JSON ({error})") from error
    return found


def _parsed(text: str, artifact: Artifact) -> dict[str, Any]:
    try:
        report: dict[str, Any] = parse_json(text, f"{artifact.uri}/{REPORT_FILE}")
    except UnreadableFile as error:
        raise HTTPException(502, str(error)) from error
    return report
