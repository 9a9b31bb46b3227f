"""Step that plans a window of a log, and the files of logs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow_hops.core.errors import BadInput, HopsError, UnreadableFile
from airflow_hops.core.models.model_records import find_record
from airflow_hops.core.processes.remote_files import open_url
from airflow_hops.core.sources.registered_sources import row_source
from airflow_hops.core.sources.source_files import list_files
from airflow_hops.core.sources.sources import Source
from airflow_hops.core.store.leases import exclusive
from airflow_hops.core.times import sortable, window_time
from airflow_hops.extensions.captured_logs.core.source import DELTA, CapturedSource
from airflow_hops.extensions.captured_logs.core.windows import LogFile, LogState, replaced
from airflow_hops.ml.step.context import StepContext

_BLOCK = 1 << 20
_TAIL = 1 << 10
_MOST_WAIT_S = 600.0
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
    """Step: plans a window of each log once; all tries of a run get the same plan.

    Args:
        context: The step's context.
        sources: Fields of the :class:`CapturedSource` of each table.
        window: Start and end, ISO 8601.

    Returns:
        By table, the JSON object of the :class:`~airflow_hops.extensions.captured_logs.core.windows.WindowPlan`.

    Raises:
        BadInput: there is no such log, a file was replaced, or a later window was planned before.
        HopsError: the store does not answer.
    """
    logs = context.sources({table: row_source(table, value) for table, value in sources.items()})
    return {table: _plan(context, table, source, window) for table, source in logs.items()}  # type: ignore[arg-type]


def _plan(context: StepContext, table: str, source: CapturedSource, window: Sequence[str | None]) -> dict[str, Any]:
    start, end = (window_time(name, text) for name, text in zip(("window_start", "window_end"), window, strict=True))
    store, producer = context.store, context.spec.producer
    if source.log.startswith(DELTA) and end is None:
        raise BadInput(
            f"source {source.uri!r}: a Delta table moves its rows to other files, so that only a window tells which "
            "are new: give IngestOperator a window_end"
        )
    name = f"{table}-{hashlib.sha256(source.uri.encode()).hexdigest()[:12]}"
    folder = store.internal("_state", "tasks", producer.dag_id, producer.task, "logs", name)
    key = (
        f"run {producer.run_id}"
        if end is None
        else f"{sortable(start.isoformat()) if start else 'first'} to {sortable(end.isoformat())}"
    )
    with exclusive(store, f"{folder}/lock", f"the windows of {source.uri}", _MOST_WAIT_S):
        state = _read(store, f"{folder}/log.json")
        number = state.number(key)
        if number is None:
            record = find_record(store, source.model)
            deployed = tuple(record.versions()) if record is not None else None
            files = find_files(source, {file.path: file for file in state.files})
            state = state.planned(key, _microseconds(start), _microseconds(end), files, deployed)
            store.write_text(f"{folder}/log.json", json.dumps(state.to_dict()))
            number = state.dropped + len(state.windows) - 1
    return state.plan(number, source.lookback).to_dict()


def _read(store: Any, uri: str) -> LogState:
    try:
        return LogState.from_dict(store.read_json(uri))
    except FileNotFoundError:
        return LogState()
    except (TypeError, ValueError) as error:
        raise BadInput(f"{uri}: not the windows of a log ({error}); restore it, or remove it to begin again") from error


def _microseconds(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1_000_000)


def open_log(source: CapturedSource) -> Any:
    """Returns the file system of a log."""
    return open_url(source.log.removeprefix(DELTA), source.storage_options)[0]


def find_files(source: CapturedSource, known: Mapping[str, LogFile]) -> list[LogFile]:
    """Lists the files of a log, with the end of the last complete entry of each.

    Args:
        source: The log, with the options of its connection.
        known: The files as they were found before, by path.

    Raises:
        BadInput: there is no file, or one is neither of JSON lines nor Parquet.
        HopsError: the store does not answer.
    """
    if source.log.startswith(DELTA):
        return list(_delta_files(source))
    fs, listed = list_files(Source(source.log, storage_options=source.storage_options))
    files = []
    for file in listed:
        former = known.get(file.path)
        if former is not None and former.size == file.size_bytes and not _is_open(former, file.version):
            files.append(replace(former, version=file.version))
        elif file.size_bytes:
            files.append(_describe(fs, file.path, file.size_bytes, file.version, former))
    return files


def _is_open(former: LogFile, version: str) -> bool:
    """Returns whether a file of the same size may have changed, or have entries that no window has read."""
    return former.format == "lines" and (not version or version != former.version or former.end < former.size)


def _describe(fs: Any, path: str, size: int, version: str, former: LogFile | None) -> LogFile:
    try:
        with fs.open(path, "rb") as stream:
            head = stream.read(64)
            if head.startswith(b"PAR1"):
                return LogFile(path, "parquet", size, version, size)
            if head.startswith(b"\x1f\x8b"):
                return LogFile(path, "gzip", size, version, size)
            if not head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
                raise UnreadableFile(
                    path, f": begins with {head[:20]!r}; expected JSON lines, also gzipped, or Parquet"
                )
            begin = former.end if former is not None else 0
            # What is cut off and has not grown since the window before is never completed.
            is_finished = former is not None and former.size == size
            if former is not None and former.tail and former.tail != _tail(stream, begin):
                raise replaced(former, size)
            end = size if is_finished else _end_of_lines(stream, begin, size)
            return LogFile(path, "lines", size, version, end, _tail(stream, end))
    except OSError as error:
        raise HopsError(f"{path}: cannot be read: {type(error).__name__}: {error}") from error


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
        yield LogFile(f"{root}/{path}", "parquet", size, "", size)


def _column(added: Any, name: str) -> list[Any]:
    import pyarrow as pa

    values: list[Any] = pa.table(added)[name].to_pylist()
    return values
