"""Artifacts that monitors need: their newest reports and decisions, and the requests that they compare."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_hops.core.artifacts.artifact import Manifest, name_in
from airflow_hops.core.capture_layout import name_time
from airflow_hops.core.errors import UnreadableFile
from airflow_hops.core.monitor_reports import listed_reports, read_report
from airflow_hops.core.performance import PerformanceProperties
from airflow_hops.core.skew import ComparedFiles, SkewProperties
from airflow_hops.core.times import as_utc
from airflow_hops.extensions.governance.core.rule import CapturedFiles, StoreListing

# Those of version 0.1.0 lie outside of `tasks`.
_CURSOR = re.compile(r"_state/(?:tasks/)?([^/]+)/([^/]+)/captured\.json")
_DECISION = re.compile(r"_state/(?:tasks/)?([^/]+)/([^/]+)/decisions/[^/]+\.json")
_KINDS = ("skew", "performance")


def needed(listing: StoreListing) -> Iterator[tuple[Any, str]]:
    """Yields the newest report of each served version, and the newest decision of each monitor, with reasons."""
    store = listing.store
    for model, record in listing.models.items():
        for version in {each.version for each in record.serving.values()}:
            for kind in _KINDS:
                for _, name in listed_reports(store, model, version, kind)[:1]:
                    report = read_report(store, model, version, kind, name)
                    yield report.uri, f"newest {kind} report of model {model}, version {version}"
    newest = {match.groups(): path for path in sorted(listing.sizes) if (match := _DECISION.fullmatch(path))}
    for (dag, task), path in newest.items():
        yield store.read_json(f"{store.root}/{path}"), f"newest decision of {name_in(dag)}, task {name_in(task)}"


def captured(listing: StoreListing, retained: Mapping[str, Manifest]) -> Iterator[tuple[str, CapturedFiles]]:
    """Yields the files of retained reports, and those that a skew monitor will still compare."""
    reports = {uri: manifest for uri, manifest in retained.items() if manifest.kind in _KINDS}
    newest = {  # the newest report of each task and model
        (by.dag_id, by.task, manifest.properties.get("model_name")): uri
        for uri, manifest in sorted(reports.items(), key=lambda each: as_utc(each[1].created_at))
        for by in [manifest.producer]
    }
    for uri, manifest in reports.items():
        if (need := _of_report(uri, manifest, newest=uri in newest.values())) is not None:
            yield need
    for path in listing.sizes:
        if match := _CURSOR.fullmatch(path):
            yield from _of_cursor(listing, path, *map(name_in, match.groups()))


def _of_report(uri: str, manifest: Manifest, *, newest: bool) -> tuple[str, CapturedFiles] | None:
    """Returns the model of a retained report, and the requests that it measured; None if it measured none.

    The next measurement reads requests that the newest one has read, and later ones.
    """
    if "captured" in manifest.inputs:
        return None  # the report measured an artifact, not captured files
    if manifest.kind == "skew":
        skew = SkewProperties.of(manifest.reference(uri))
        model, files = skew.reference.model or "", skew.captured_files
    else:
        performance = PerformanceProperties.of(manifest.reference(uri))
        model, files = performance.model_name, performance.captured_files
    if files is None:
        return None
    reason = f"measured by {uri}"
    if newest and manifest.kind == "performance":
        return model, CapturedFiles(reason, files[0])
    return model, CapturedFiles(reason, files[0], files[1])


def _of_cursor(listing: StoreListing, path: str, dag_id: str, task_id: str) -> Iterator[tuple[str, CapturedFiles]]:
    """Yields the needs of a skew monitor, by model, from its ``captured.json``."""
    uri, young = f"{listing.store.root}/{path}", name_time(listing.oldest)
    try:
        compared = ComparedFiles.from_dict(listing.store.read_json(uri))
    except FileNotFoundError:
        return
    except (ValueError, TypeError) as error:
        raise UnreadableFile(uri).with_text(
            f"nothing is removed: {uri}: not the position of a skew monitor ({error!r}); remove it"
        ) from error
    reason = f"not compared yet by task {task_id} of {dag_id}; its position is {uri}"
    needs = [CapturedFiles(reason, _after(compared.until))]
    for run_id, window in compared.runs.items():
        first = _after(window.after)
        if window.until is not None and first < young and listing.may_be_active(dag_id, run_id):  # later are retained
            needs.append(CapturedFiles(f"compared by run {run_id} of {dag_id}", first, window.until))
    yield from ((model, need) for model in compared.models for need in needs)


def _after(name: str | None) -> str:
    """Returns a text between a name and the next one; names begin with a time, so None is before all."""
    return "" if name is None else f"{name}\0"
