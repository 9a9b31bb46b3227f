"""Step that plans a window of a log, and the files of logs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from airflow_hops.core.errors import BadInput, HopsError, UnreadableFile
from airflow_hops.core.models.model_record import find_record
from airflow_hops.core.processes.remote_files import open_url
from airflow_hops.core.sources.source_files import list_files
from airflow_hops.core.sources.sources import Source, row_source
from airflow_hops.core.times import sortable, window_time
from airflow_hops.extensions.captured_logs.core.records import LogRecords
from airflow_hops.extensions.captured_logs.core.source import DELTA, KSERVE, CapturedSource
from airflow_hops.extensions.captured_logs.core.windows import NEW, LogFile
from airflow_hops.ml.step.context import StepContext

_BLOCK = 1 << 20
_TAIL = 1 << 10
_MARKS = {b"PAR1": "parquet", b"\x1f\x8b": "gzip", b"url,bytes,": "csv"}
"""Format by the first bytes of a file; CSV is KServe's alone."""
_OPTIONS = {
    "key": "AWS_ACCESS_KEY_ID",
    "secret": "AWS_SECRET_ACCESS_KEY",
    "token": "AWS_SESSION_TOKEN",
    "endpoint_url": "AWS_ENDPOINT_URL",
}
"""Options of deltalake for those of s3fs."""


def plan_logs(
    context: StepContext, *, sources: Mapping[str, Mapping[str, Any]], window: Sequence[str | None]
) -> dict[str, Any]:
    """Step: plans a window of each log.

    A window that was taken has one plan for ever, and before as long as no other window is taken.

    Args:
        context: The step's context.
        sources: Fields of the :class:`CapturedSource` of each table.
        window: Start and end, ISO 8601.

    Returns:
        By table, the JSON object of the :class:`~airflow_hops.extensions.captured_logs.core.windows.WindowPlan`.

    Raises:
        BadInput: there is no such log, entries may be lost with a file, or the window is too long ago.
        HopsError: the store does not answer.
    """
    logs = context.sources({table: row_source(table, value) for table, value in sources.items()})
    return {
        table: _plan(context, table, source, window, _digest(sources[table]))  # type: ignore[arg-type]
        for table, source in logs.items()
    }


def _digest(source: Mapping[str, Any]) -> str:
    options = {name: value for name, value in source.items() if name != "storage_options"}  # which may have secrets
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]


def _plan(
    context: StepContext, table: str, source: CapturedSource, window: Sequence[str | None], digest: str
) -> dict[str, Any]:
    start, end = (window_time(name, text) for name, text in zip(("window_start", "window_end"), window, strict=True))
    records = LogRecords.of_task(context.store, context.spec.producer, table)
    key = (
        f"run {context.spec.producer.run_id}"
        if end is None
        else f"{sortable(start.isoformat()) if start else 'first'} to {sortable(end.isoformat())}"
    )
    with records.held():
        former = records.state()
        files, names = find_files(source, former.files)
        state = former.found(files, key)
        if not source.log.startswith(DELTA) and (lost := former.lost(files, names)) is not None:
            records.write(state, former)  # the next try plans without the file
            raise BadInput(
                f"{lost}. Have the source's address match the names of rotated files, such as app.log*, and keep these "
                "for a window. The next try or run takes all other entries"
            )
        taken = None
        for known in filter(None, (state.window(key), state.window(key, is_taken=True))):
            plan = records.plan(known.number)
            is_current = state.is_current(plan)
            if is_current and plan.source == digest:
                return replace(plan, known=state.known(plan)).to_dict()
            if known.is_taken and not is_current:
                return state.repeated(plan).to_dict()
            taken = plan if known.is_taken else None
        if taken is not None:
            state, plan = state.planned_again(taken)
        else:
            record = find_record(context.store, source.model)
            deployed = tuple(record.versions()) if record is not None else None
            state, plan = state.planned(
                key, _microseconds(start), _microseconds(end), now=int(time.time() * 1_000_000),
                lookback=source.lookback, deployed=deployed, folder=records.path,
            )  # fmt: skip
        plan = replace(plan, source=digest)
        context.store.write_text(records.uri(f"{plan.number}.json"), json.dumps(plan.to_dict()))
        records.write(state, former)
    return plan.to_dict()


def _microseconds(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1_000_000)


def open_log(source: CapturedSource) -> Any:
    """Returns the file system of a log."""
    return open_url(source.log.removeprefix(DELTA), source.storage_options)[0]


def find_files(source: CapturedSource, known: Sequence[LogFile] = ()) -> tuple[list[LogFile], list[str]]:
    """Lists the files of a log, with the end of the last complete entry of each.

    Args:
        source: The log, with the options of its connection.
        known: The files as they were found before.

    Returns:
        The files, which are not ``born`` if they are new or were replaced; and the paths of all, also without content.

    Raises:
        BadInput: the folder does not exist, or a file is neither of JSON lines nor Parquet.
        HopsError: the store does not answer.
    """
    former = {file.path: file for file in known}
    if source.log.startswith(DELTA):
        listed = list(_delta_files(source))
        return [_same(file, former.get(file.path)) for file in listed], [file.path for file in listed]
    fs, matches = list_files(Source(source.log, storage_options=source.storage_options), may_be_empty=True)
    files = [
        _describe(fs, file.path, file.size_bytes, file.version, former.get(file.path), source.layout)
        for file in matches
        if file.size_bytes
    ]
    born = {(file.path, file.born) for file in files}
    gone = [file for file in known if file.tail and (file.path, file.born) not in born]
    if gone:
        files = [replace(file, quiet=_read_before(fs, file, gone)) if file.born == NEW else file for file in files]
    return files, [file.path for file in matches]


def _same(file: LogFile, former: LogFile | None) -> LogFile:
    """Returns a file with what is known of it, if it is the former one."""
    if former is None or (former.format, former.size, former.version) != (file.format, file.size, file.version):
        return file
    return former


def _describe(fs: Any, path: str, size: int, version: str, former: LogFile | None, layout: str) -> LogFile:
    if former is not None and version and (size, version) == (former.size, former.version) and former.end == size:
        return former  # it has not changed, and its last line is complete
    try:
        with fs.open(path, "rb") as stream:
            head = stream.read(64)
            for mark, kind in _MARKS.items():
                if head.startswith(mark) and (kind != "csv" or layout == KSERVE):
                    return _same(LogFile(path, kind, size, version, size), former)
            if not head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"{", b"[") if layout == KSERVE else b"{"):
                raise UnreadableFile(
                    path, f": begins with {head[:20]!r}; expected JSON lines, also gzipped, or Parquet, or KServe's CSV"
                )
            if former is not None and (
                former.format != "lines" or size < former.end or former.tail != _tail(stream, former.end)
            ):
                former = None
            begin = former.end if former is not None else 0
            # What is cut off and has not grown since the window before is never completed.
            is_finished = former is not None and former.size == size
            end = size if is_finished else _end_of_lines(stream, begin, size)
            file = LogFile(path, "lines", size, version, end, _tail(stream, end))
            return file if former is None else replace(former, size=size, version=version, end=end, tail=file.tail)
    except OSError as error:
        raise HopsError(f"{path}: cannot be read: {type(error).__name__}: {error}") from error


def _read_before(fs: Any, file: LogFile, gone: Sequence[LogFile]) -> int:
    """Returns how many bytes of a file were read under a name that is gone; 0 if it is not known."""
    if file.format != "lines":
        return 0
    try:
        with fs.open(file.path, "rb") as stream:
            same = (each.read for each in gone if each.end <= file.end and _tail(stream, each.end) == each.tail)
            return max(same, default=0)
    except OSError as error:
        raise HopsError(f"{file.path}: cannot be read: {type(error).__name__}: {error}") from error


def _tail(stream: Any, end: int) -> str:
    stream.seek(max(0, end - _TAIL))
    return hashlib.sha256(stream.read(min(end, _TAIL))).hexdigest()[:16]


def _end_of_lines(stream: Any, begin: int, size: int) -> int:
    """Returns the end of the last complete line after ``begin``; a line being written is no JSON object yet."""
    tail, position = b"", size
    while position > begin and b"\n" not in tail:
        step = min(_BLOCK, position - begin)
        position -= step
        stream.seek(position)
        tail = stream.read(step) + tail
    line = tail[tail.rfind(b"\n") + 1 :]
    try:
        json.loads(line)
        return size
    except (ValueError, RecursionError):
        return size - len(line)


def _delta_files(source: CapturedSource) -> Iterator[LogFile]:
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        raise BadInput(
            f"source {source.uri!r} needs the package 'deltalake' in the runtime environment ({error})"
        ) from error
    options = {_OPTIONS[name]: str(value) for name, value in source.storage_options.items() if name in _OPTIONS}
    if str(source.storage_options.get("endpoint_url", "")).startswith("http://"):
        options["AWS_ALLOW_HTTP"] = "true"
    place = source.log.removeprefix(DELTA)
    try:
        table = DeltaTable(place, storage_options=options or None)
        has_vectors = "deletionVectors" in (table.protocol().reader_features or ())
        deletions = table.deletion_vectors().read_all().num_rows if has_vectors else 0
        mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
        added = table.get_add_actions(flatten=True)
        sizes = dict(zip(*(_column(added, name) for name in ("path", "size_bytes")), strict=True))
    except Exception as error:  # deltalake has no class of its own for each
        raise HopsError(f"source {source.uri!r} cannot be read: {type(error).__name__}: {error}") from error
    if deletions or mapping != "none":
        part = f"deletion vectors of {deletions} files" if deletions else f"column mapping by {mapping}"
        raise BadInput(
            f"source {source.uri!r}: the table has {part}, which only Spark reads; "
            + ("purge them (REORG TABLE … APPLY (PURGE))" if deletions else "copy it to a table without")
        )
    root = open_url(place, source.storage_options)[1].rstrip("/")
    for path, size in sorted(sizes.items()):
        name = unquote(path)  # by the protocol, the path of an action is that of a URI
        if "://" in name or name.startswith(("/", "\\")) or ".." in name.split("/"):
            raise BadInput(
                f"source {source.uri!r}: the table's log names the file {path!r}, which is outside of the table, as of "
                "a shallow clone; copy the table (DEEP CLONE), or name the one that it was cloned from"
            )
        yield LogFile(f"{root}/{name}", "parquet", size, "", size)


def _column(added: Any, name: str) -> list[Any]:
    import pyarrow as pa

    values: list[Any] = pa.table(added)[name].to_pylist()
    return values
