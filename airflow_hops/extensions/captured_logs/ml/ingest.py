"""Reads the entries of a log that a window takes into a table of captured rows, as the model server writes them."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_hops.core.artifacts.artifact import FileEntry
from airflow_hops.core.errors import BadInput
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.sources.sources import Source
from airflow_hops.extensions.captured_logs.core.json_bodies import json_object
from airflow_hops.extensions.captured_logs.core.source import DELTA, CapturedSource
from airflow_hops.extensions.captured_logs.core.windows import IN_THE_FUTURE, WindowPlan
from airflow_hops.extensions.captured_logs.ml.columns import ColumnKinds, column_of
from airflow_hops.extensions.captured_logs.ml.entries import (
    KServeEvents,
    LogEntry,
    Unusable,
    entries_of,
    read_part,
)
from airflow_hops.extensions.captured_logs.ml.plan import open_log
from airflow_hops.ml.ingest.reader import Progress, ingest_table
from airflow_hops.ml.ingest.window import Window, WindowCounts
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.readers.types import type_named
from airflow_hops.ml.spark.pools import IN_PROCESS, Pool

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 50_000
_UNANSWERED, _UNASKED, _DAMAGED = "without a response", "without a request", "no JSON object"
"""Reasons that are the log's fault: a window with nothing else fails."""
_FACTS = {
    "request_id": pa.string(), "row": pa.int32(), "model": pa.string(), "version": pa.int64(),
    "captured_at": pa.timestamp("us", "UTC"),
}  # fmt: skip


def copy_log(
    table: str, source: CapturedSource, plan: Any, window: Window, folder: OutputFolder, pool: Pool, progress: Progress
) -> tuple[WindowCounts, list[FileEntry]]:
    """Reads the entries of a window, as :class:`~airflow_hops.ml.ingest.reader.Reader`.

    Raises:
        BadInput: nothing is planned, an entry cannot be read, an id has several contents, or all entries are damaged or
            without a response.
        HopsError: the store does not answer.
    """
    if plan is None:
        raise BadInput(f"table {table!r}: only IngestOperator reads {source.uri!r}, by windows that it plans")
    planned = WindowPlan.from_dict(plan)
    counts = WindowCounts()
    with temporary_folder("part") as staging:
        rows = _Rows(staging, source)
        for entry in _taken(source, planned, counts, progress):
            rows.add(entry)
        for reason, number in counts.rejected.items():
            log.warning("%s: %d rows are left out: %s", source.uri, number, reason)
        if not rows.count:
            if counts.rejected.keys() & {_UNANSWERED, _UNASKED, _DAMAGED}:
                raise no_rows(source, counts, window)
            log.warning("%s", no_rows(source, counts, window))
            facts = pa.schema([(name, kind) for name, kind in _FACTS.items() if name in (source.columns or _FACTS)])
            left_out = WindowCounts(sum(counts.rejected.values()), 0, counts.rejected)
            return left_out, folder.write_empty(table, facts)
        staged = rows.source()
        chosen = pool if pool.runs_here else IN_PROCESS
        # Without an end, all that is there is planned, whatever the window's start.
        whole = Window(window.start if planned.ends[planned.number] is None else None, None)
        written, files = ingest_table(
            table, staged, whole, folder, chosen, lambda share, text: progress(0.5 + share / 2, text)
        )
    for reason, number in written.rejected.items():
        counts.reject(reason, number)
    rows_in = written.rows_out + sum(counts.rejected.values())
    return WindowCounts(rows_in=rows_in, rows_out=written.rows_out, rejected=counts.rejected), files


def no_rows(source: CapturedSource, counts: WindowCounts, window: Window) -> BadInput:
    """Returns the error that a window has no captured rows."""
    reasons = ", ".join(f"{number} {reason}" for reason, number in counts.rejected.items())
    advice = "; to watch inputs alone, give the source mode='inputs'" if _UNANSWERED in counts.rejected else ""
    return BadInput(
        f"{source.uri!r} has no captured rows for the window {window} "
        f"({reasons or 'nothing was written to the log since the window before'}){advice}"
    )


def _taken(source: CapturedSource, plan: WindowPlan, counts: WindowCounts, progress: Progress) -> Iterator[LogEntry]:
    """Yields the entries that a window takes, each once, and counts those that no window takes."""
    known: dict[bytes, tuple[bytes, str]] = {}
    for entry in _due(source, plan, counts, progress, known):
        content, where = known.setdefault(_key(entry), (_content(entry), entry.where))
        if where == entry.where:
            if (reason := _version_refusal(entry, source, plan)) is None:
                yield entry
                continue
        elif content == _content(entry):
            reason = "delivered twice"
        else:
            raise BadInput(
                f"{entry.where}: the id {entry.request_id!r} has another content than in {where}; name a field with "
                "ids that are unique in 'request_id', and in 'row' the number of a row if a request has several entries"
            )
        counts.reject(reason, _rows_of(entry, source))


def _due(
    source: CapturedSource,
    plan: WindowPlan,
    counts: WindowCounts,
    progress: Progress,
    known: dict[bytes, tuple[bytes, str]],
) -> Iterator[LogEntry]:
    """Yields the entries that are due, also copies; the contents of those taken before are in ``known`` by then."""
    due, first = list[LogEntry](), None
    for entry in read_entries(source, plan, counts, progress):
        reason = _other_endpoint(entry, first, source) or _why_unanswered(entry, source)
        first = first or (entry if entry.endpoint is not None else None)
        if reason is None and plan.is_taken_before(entry.number, entry.at_us):
            known.setdefault(_key(entry), (_content(entry), entry.where))
            continue
        reason = plan.judge(entry.number, entry.at_us) if reason is None else reason
        if reason and (entry.number == plan.number or reason == IN_THE_FUTURE):
            counts.reject(reason, _rows_of(entry, source))
        if reason == "":
            due.append(entry)
        if entry.number == plan.number:  # parts come in the order of their windows
            yield from due
            due.clear()
    yield from due


def _why_unanswered(entry: LogEntry, source: CapturedSource) -> str | None:
    """Returns why an entry has no predictions; None if it has, or needs none."""
    if source.mode == "all" and entry.outputs is None:
        return _UNANSWERED
    if isinstance(source.outputs, Mapping):  # fields, not a body
        return None
    body = json_object(entry.outputs)
    return "answered with an error" if body is not None and body.keys() == {"error"} else None


def read_entries(
    source: CapturedSource, plan: WindowPlan, counts: WindowCounts, progress: Progress
) -> Iterator[LogEntry]:
    """Yields the entries in the parts of a plan, in the order of their windows, and counts what is none.

    Raises:
        BadInput: an entry cannot be read, or a file was removed.
        HopsError: the store does not answer.
    """
    fs = open_log(source)
    events = KServeEvents(source) if source.layout == "kserve" else None
    complete = set[str]()
    total, done = sum(part.end - part.start for part in plan.parts) or 1, 0
    for part in plan.parts:
        is_new = part.number == plan.number
        try:
            for where, value in read_part(fs, part, source):
                if value is None:
                    log.warning("%s: no JSON object; the line is cut off or damaged", where)
                    counts.reject(_DAMAGED, 1 if is_new else 0)
                    continue
                try:
                    if events is None:
                        yield entries_of(value, part.number, part.path, where, source)
                    elif (entry := events.add(value, part.number, where)) is not None:
                        complete.add(entry.request_id)
                        yield entry
                except Unusable as error:
                    counts.reject(str(error), 1 if is_new else 0)
        except FileNotFoundError:
            if is_new or source.log.startswith(DELTA):
                raise BadInput(
                    f"{part.path}: the file was removed since its window was planned; restore it, or, of a Delta "
                    "table, vacuum later, or give the source a shorter lookback"
                ) from None
        done += part.end - part.start
        progress(0.5 * done / total, f"{part.path}")
    if events is not None and source.mode == "all":
        for entry in events.unanswered(complete):
            if plan.number - entry.number == plan.lookback:
                counts.reject(_UNANSWERED, 1)


def _other_endpoint(entry: LogEntry, first: LogEntry | None, source: CapturedSource) -> str | None:
    """Returns why an entry of another endpoint is left out.

    Raises:
        BadInput: it is of another endpoint than the first entry, and the source chooses none.
    """
    if entry.endpoint is None or entry.endpoint == source.endpoint:
        return None
    if source.endpoint is not None:
        return f"of endpoint {entry.endpoint!r}"
    if first is not None and first.endpoint != entry.endpoint:
        raise BadInput(
            f"{entry.where}: the log has entries of {entry.endpoint!r}, and of {first.endpoint!r} in {first.where}; "
            "choose one by the source's 'endpoint'"
        )
    return None


def _key(entry: LogEntry) -> bytes:
    try:
        return hashlib.blake2b(f"{entry.row} {entry.request_id}".encode(), digest_size=16).digest()
    except UnicodeEncodeError as error:
        raise BadInput(f"{entry.where}: the id is {entry.request_id!r}; expected text in Unicode ({error})") from error


def _content(entry: LogEntry) -> bytes:
    value = [entry.version, entry.inputs, entry.outputs, dict(entry.labels)]
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _rows_of(entry: LogEntry, source: CapturedSource) -> int:
    """Returns the number of rows of an entry that is left out; 1 if its request cannot be decoded."""
    try:
        return len(next(iter(entry.columns(source).values()), (None,)))
    except BadInput:
        return 1


def _version_refusal(entry: LogEntry, source: CapturedSource, plan: WindowPlan) -> str | None:
    """Returns why the rows of an entry's version are left out.

    Raises:
        BadInput: the log's names of versions are not numbers, and the source does not map them.
    """
    if source.versions is not None:
        if entry.version in source.versions:
            return None
    elif (number := _number(entry, source)) is not None:
        if plan.deployed is None or number in plan.deployed:
            return None
    else:
        raise BadInput(
            f"{entry.where}: the version is {entry.version!r}, not a number; give the source the number of our "
            f"version, such as versions={{{entry.version!r}: 1}}"
        )
    version = f"version {entry.version!r}" if entry.version else "an unknown version"
    return f"of {version}, which was not deployed from here"


def _number(entry: LogEntry, source: CapturedSource) -> int | None:
    """Returns our version: the number, or that of a variant ``v3`` of the kind ``sagemaker``; None for other names."""
    text = entry.version.removeprefix("v") if source.layout == "sagemaker" else entry.version
    return int(text) if text.isdecimal() and len(text) < 18 else None


class _Rows:
    """Collects captured rows in files of this machine, until the types of their columns are known."""

    def __init__(self, folder: Path, source: CapturedSource) -> None:
        self._folder, self._source = folder, source
        as_file = Source(source.log, schema=source.schema)
        self._types = {name: type_named(text, name, as_file) for name, text in source.schema.items()}
        self._kinds: dict[str, ColumnKinds] = {}
        self._columns: dict[str, list[Any]] = {name: [] for name in _FACTS}
        self._files = list[Path]()
        self._waiting = 0
        self.count = 0

    def add(self, entry: LogEntry) -> None:
        """Adds the rows of an entry. Raises BadInput if it cannot be decoded."""
        source = self._source
        columns = entry.columns(source)
        rows = len(next(iter(columns.values()), ()))
        if source.row and rows > 1:
            raise BadInput(
                f"{entry.where}: the entry has {rows} rows, but {source.row!r} numbers entries of one row; leave the "
                "source's 'row' out"
            )
        version = _number(entry, source) if source.versions is None else source.versions[entry.version]
        facts: dict[str, list[Any]] = {
            "request_id": [entry.request_id] * rows,
            "row": list(range(entry.row, entry.row + rows)),
            "model": [source.model] * rows,
            "version": [version] * rows,
            "captured_at": [entry.at_us] * rows,
        }
        for name, values in {**facts, **columns}.items():
            if name not in _FACTS:
                if name not in self._kinds:
                    self._kinds[name] = ColumnKinds(name, self._types.get(name))
                self._kinds[name].add(values, entry.where)
            column = self._columns.setdefault(name, [])
            column += [None] * (self._waiting - len(column)) + values
        self._waiting += rows
        self.count += rows
        if self._waiting >= _ROWS_AT_ONCE:
            self._keep()

    def _keep(self) -> None:
        path = self._folder / f"rows-{len(self._files):06}.pickle"
        with path.open("wb") as stream:
            pickle.dump(self._columns, stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._files.append(path)
        self._columns, self._waiting = {name: [] for name in _FACTS}, 0

    def source(self) -> Source:
        """Writes the rows as Parquet, and returns their source.

        Raises:
            BadInput: the values of a column have no common type.
        """
        if self._waiting:
            self._keep()
        types = {**_FACTS, **{name: kinds.type() for name, kinds in sorted(self._kinds.items())}}
        for path in self._files:
            columns = pickle.loads(path.read_bytes())
            rows = len(columns["row"])
            arrays = []
            for name, kind in types.items():
                values = columns.get(name, [])
                values = [*values, *[None] * (rows - len(values))]
                arrays.append(pa.array(values, kind) if name in _FACTS else column_of(values, kind, name))
            write_parquet(
                pa.Table.from_arrays(arrays, schema=pa.schema(list(types.items()))), path.with_suffix(".parquet")
            )
            path.unlink()
        return Source(
            str(self._folder), format="parquet", columns=self._source.columns, time_column=self._source.time_column
        )
