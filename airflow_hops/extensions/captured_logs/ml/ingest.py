"""Reads the entries of a log that a window takes into a table of captured rows, as the model server writes them."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from airflow_hops.core.artifacts.artifact import FileEntry
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.extensions.captured_logs.core.source import CapturedSource
from airflow_hops.extensions.captured_logs.core.windows import WindowPlan
from airflow_hops.extensions.captured_logs.ml.bodies import Columns
from airflow_hops.extensions.captured_logs.ml.entries import LogEntry, entry_of, read_part
from airflow_hops.extensions.captured_logs.ml.json_texts import Unusable, shown
from airflow_hops.extensions.captured_logs.ml.kserve import KServeEvents
from airflow_hops.extensions.captured_logs.ml.left_out import LeftOut
from airflow_hops.extensions.captured_logs.ml.plan import open_log
from airflow_hops.extensions.captured_logs.ml.rows import FACTS, StagedRows
from airflow_hops.extensions.captured_logs.ml.taken import OTHER, Taking
from airflow_hops.ml.ingest.reader import Progress, ingest_staged
from airflow_hops.ml.ingest.window import Window, WindowCounts
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.spark.pools import Pool

log = logging.getLogger(__name__)

_UNANSWERED = "without a response"
_FAULTS = {_UNANSWERED, "without a request", "no JSON object"}
"""Reasons that are the log's fault: a window with nothing else fails."""
_UNIQUE = (
    "name a field with ids that are unique in 'request_id', and in 'row' the number of a row if a request has several "
    "entries"
)
_NUMBER = re.compile(r"[1-9][0-9]{0,16}")


def copy_log(
    table: str, source: CapturedSource, plan: Any, window: Window, folder: OutputFolder, pool: Pool, progress: Progress
) -> tuple[WindowCounts, list[FileEntry]]:
    """Reads the entries of a window, as :class:`~airflow_hops.ml.ingest.reader.Reader`.

    Raises:
        BadInput: nothing is planned, or of the entries more than ``max_rejected`` cannot be read, or all are without a
            response.
        HopsError: the store does not answer.
    """
    if plan is None:
        raise BadInput(f"table {table!r}: only IngestOperator reads {source.uri!r}, by windows that it plans")
    planned = WindowPlan.from_dict(plan)
    left_out, taking = LeftOut(), Taking(planned)
    with temporary_folder("part") as staging:
        rows = StagedRows(staging, source, left_out)
        for entry, columns, version in _taken(source, taking, left_out, progress):
            rows.add(entry, columns, version)
        taking.record()
        staged = rows.source() if rows.count else None
        for reason, number in left_out.rows.items():
            log.warning("%s: %d rows are left out: %s", source.uri, number, reason)
        if left_out.faults > source.max_rejected * (rows.count + left_out.faults):
            raise _too_many(source, left_out, rows.count, window)
        counts = WindowCounts(sum(left_out.rows.values()), 0, left_out.rows)
        if not rows.count or staged is None:
            if left_out.rows.keys() & _FAULTS:
                raise no_rows(source, left_out, window)
            log.warning("%s", no_rows(source, left_out, window))
            facts = pa.schema([(name, kind) for name, kind in FACTS.items() if name in (source.columns or FACTS)])
            return counts, folder.write_empty(table, facts)
        # Without an end, all that is there is planned, whatever the window's start.
        whole = Window(window.start if planned.end is None else None, None)
        written, files = ingest_staged(table, staged, whole, folder, pool, progress)
    counts.add([written])
    return counts, files


def no_rows(source: CapturedSource, left_out: LeftOut, window: Window) -> BadInput:
    """Returns the error that a window has no captured rows."""
    reasons = ", ".join(f"{number} {reason}" for reason, number in left_out.rows.items())
    advice = "; to watch inputs alone, give the source mode='inputs'" if _UNANSWERED in left_out.rows else ""
    details = "".join(f"; {detail}" for detail in left_out.details.values() if detail)
    return BadInput(
        f"{source.uri!r} has no captured rows for the window {window} "
        f"({reasons or 'nothing was written to the log since the window before'}){advice}{details}"
    )


def _too_many(source: CapturedSource, left_out: LeftOut, rows: int, window: Window) -> BadInput:
    if not rows:
        return no_rows(source, left_out, window)
    reasons = "; ".join(
        f"{number} {reason}{f', such as {detail}' if (detail := left_out.details[reason]) else ''}"
        for reason, number in left_out.rows.items()
    )
    return BadInput(
        f"{source.uri!r}: {left_out.faults} rows in the window {window} cannot be read, beside {rows} others; at most "
        f"{source.max_rejected:.0%} are allowed by the source's max_rejected: {reasons}"
    )


def _taken(
    source: CapturedSource, taking: Taking, left_out: LeftOut, progress: Progress
) -> Iterator[tuple[LogEntry, Columns, int]]:
    """Yields the entries that a window takes, each once, with their columns and versions, and counts the others."""
    for entry in read_entries(source, taking.plan, left_out, progress, taking):
        other = _other_endpoint(entry, source)
        reason = taking.due(entry) if other is None else other
        if reason != "":
            if reason is not None and taking.is_new(entry.parts):
                left_out.add(Unusable(reason, is_fault=False), _rows_of(entry, source))
            continue
        rows = 1
        try:
            columns = entry.columns(source)
            rows = len(next(iter(columns.values()), ()))
            version = _our_version(entry, source, taking.plan)
            if source.row and rows > 1:
                raise Unusable(
                    "of several rows",
                    f"{entry.where}: the entry has {rows} rows, but {source.row!r} numbers entries of one row; leave "
                    "the source's 'row' out",
                )
        except Unusable as error:
            if taking.is_due_first(entry):
                left_out.add(error, rows, is_said=taking.is_seen(entry.parts))
            continue
        # An entry that cannot be read keeps its id free, as clients repeat a request that has failed.
        if (reason := taking.take(entry)) == "":
            yield entry, columns, version
        elif reason is not None:
            detail = f"{entry.where}: the id {shown(entry.request_id)} has another content than before; {_UNIQUE}"
            left_out.add(Unusable(reason, detail if reason == OTHER else "", is_fault=reason == OTHER), rows)


def read_entries(
    source: CapturedSource, plan: WindowPlan, left_out: LeftOut, progress: Progress, taking: Taking | None = None
) -> Iterator[LogEntry]:
    """Yields the entries in the parts of a plan, in the order of their windows, and counts what is none.

    ``taking`` leaves events that wait for another one.

    Raises:
        HopsError: the store does not answer, or a file was removed.
    """
    fs = open_log(source)
    total, done = sum(part.end - part.start for part in plan.parts) or 1, 0
    with tempfile.TemporaryFile() as bodies:
        events = KServeEvents(source, bodies) if source.layout == "kserve" else None
        for index, part in enumerate(plan.parts):
            is_new = part.number == plan.number
            try:
                for item in read_part(fs, part, index, source):
                    try:
                        if item.value is None:
                            raise Unusable("no JSON object", f"{item.where}: the line is cut off, damaged or too large")
                        if events is None:
                            yield entry_of(item, source)
                        else:
                            events.add(item)
                    except Unusable as error:
                        left_out.add(error, 1 if is_new else 0, is_said=part.is_seen)
            except FileNotFoundError:
                raise HopsError(
                    f"{part.path}: the file was removed after the window was planned; a retry looks for its entries in "
                    "the files that are there"
                ) from None
            done += part.end - part.start
            progress(0.5 * done / total, f"{part.path}")
        if events is None:
            return
        for pair in events.pairs():
            try:
                yield events.entry(pair)
            except Unusable as error:
                is_counted = pair.number == plan.number
                if pair.waits:
                    reason = taking.wait(pair.events[0]) if taking is not None else None
                    is_counted = reason is not None
                    error = Unusable(reason, is_fault=False) if reason else error
                left_out.add(error, 1 if is_counted else 0)


def _other_endpoint(entry: LogEntry, source: CapturedSource) -> str | None:
    """Returns why an entry of another endpoint is left out; without ``endpoint``, that of most entries counts."""
    is_other = entry.endpoint is not None and source.endpoint is not None and entry.endpoint != source.endpoint
    return f"of endpoint {entry.endpoint!r}" if is_other else None


def _rows_of(entry: LogEntry, source: CapturedSource) -> int:
    """Returns the number of rows of an entry that is left out; 1 if its request cannot be decoded."""
    try:
        return len(next(iter(entry.columns(source).values()), (None,)))
    except Unusable:
        return 1


def _our_version(entry: LogEntry, source: CapturedSource, plan: WindowPlan) -> int:
    """Returns the number of our version that an entry is of: the number, or that of a variant ``v3`` of SageMaker.

    Raises:
        Unusable: it is of a version that was not deployed from here, or whose name is not a number.
    """
    shown_version = f"version {entry.version!r}" if entry.version else "an unknown version"
    other = Unusable(f"of {shown_version}, which was not deployed from here", is_fault=False)
    if source.versions is not None:
        if entry.version not in source.versions:
            raise other
        return source.versions[entry.version]
    text = entry.version.removeprefix("v") if source.layout == "sagemaker" else entry.version
    if not _NUMBER.fullmatch(text):  # 007 may be another version than 7
        raise Unusable(
            "of a version that is not a number",
            f"{entry.where}: the version is {entry.version!r}, not a number; give the source the number of our "
            f"version, such as versions={{{entry.version!r}: 1}}",
        )
    if plan.deployed is not None and int(text) not in plan.deployed:
        raise other
    return int(text)
