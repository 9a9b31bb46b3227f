"""Entries of a log: the objects of a file's part, and what each says of a request."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.errors import BadInput, HopsError, MissingColumn, UnreadableFile
from airflow_hops.extensions.captured_logs.core.json_bodies import json_object
from airflow_hops.extensions.captured_logs.core.source import TIME_UNITS, CapturedSource
from airflow_hops.extensions.captured_logs.core.windows import LogPart
from airflow_hops.extensions.captured_logs.ml.bodies import Columns, body_columns, decoded
from airflow_hops.ml.readers.types import CALENDAR_S

_ROWS = 10_000
_BLOCK = 1 << 20
_SAGEMAKER = re.compile(r"([^/]+)/([^/]+)/\d{4}/\d\d/\d\d/\d\d/[^/]+$")
_EVENTS = "org.kubeflow.serving.inference."
_OK = range(200, 300)
_ALSO = {"timestamp_ms": "request_time", "served_entity_id": "request_metadata.model_version"}
"""Field of the other kind of inference table, by field."""


class Unusable(Exception):
    """Raised for an entry that is counted and left out; the text is the reason."""


@dataclass(frozen=True)
class LogEntry:
    """A request, or a row of one, in a log.

    Attributes:
        where: Place in the log.
        number: Number of the window that found it.
        request_id: Its id.
        row: Number of its first row.
        at_us: Time, microseconds since the epoch.
        version: Name of the version that answered, in the log's words.
        endpoint: Name of the endpoint; None if the log has none.
        inputs: The request: a body, or features by name.
        outputs: The response; None without one.
        labels: Labels by name.
    """

    where: str
    number: int
    request_id: str
    row: int
    at_us: int
    version: str
    endpoint: str | None
    inputs: Any
    outputs: Any
    labels: Mapping[str, Any] = field(default_factory=dict)

    def columns(self, source: CapturedSource) -> Columns:
        """Decodes the captured columns of the entry's rows.

        Raises:
            BadInput: a body cannot be decoded, or the response has another number of rows.
        """
        inputs = _values(self.inputs, source.inputs, "inputs", self.where)
        outputs = _values(self.outputs, source.outputs, "outputs", self.where) if self.outputs is not None else {}
        rows = len(next(iter(inputs.values()), ()))
        for name, values in outputs.items():
            if len(values) != rows:
                raise BadInput(
                    f"{self.where}: {rows} rows in the request, but {len(values)} of {name!r} in the response"
                )
        return {
            **{f"input.{name}": values for name, values in inputs.items()},
            **{f"output.{name}": values for name, values in outputs.items()},
            **{f"label.{name}": [value] * rows for name, value in self.labels.items()},
        }


def _values(value: Any, names: Any, what: str, where: str) -> Columns:
    if isinstance(names, Mapping):
        return {name: [each] for name, each in value.items()}
    return body_columns(value, names, what, where)


def read_part(fs: Any, part: LogPart, source: CapturedSource) -> Iterator[tuple[str, Any]]:
    """Yields the objects in a part of a file, each with its place; None instead of what is no JSON object.

    Raises:
        BadInput: the file is damaged or lacks a field.
        HopsError: the store does not answer.
    """
    try:
        with fs.open(part.path, "rb") as stream:
            if part.format == "parquet":
                yield from _parquet(stream, part.path, source)
                return
            stream.seek(part.start)
            position = part.start
            for number, line in enumerate(_lines(stream, part), 1):
                place = f"line {number}" if not part.start else f"byte {position}"
                position += len(line)
                text = line.removeprefix(b"\xef\xbb\xbf").strip()
                if text:
                    yield f"{part.path}, {place}", _object(text)
    except (EOFError, zlib.error, gzip.BadGzipFile, pa.ArrowInvalid) as error:
        raise UnreadableFile(part.path, f": the file is damaged, or not finished ({error})") from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise HopsError(f"{part.path}: cannot be read: {type(error).__name__}: {error}") from error


def _lines(stream: Any, part: LogPart) -> Iterator[bytes]:
    """Yields the lines of a part; fsspec's files have no ``readline`` with a limit."""
    left, rest = part.end - part.start, b""
    content = gzip.GzipFile(fileobj=stream) if part.format == "gzip" else stream
    while block := content.read(_BLOCK if part.format == "gzip" else min(_BLOCK, left)):
        left -= len(block)
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest


def _object(text: bytes) -> Any:
    try:
        value = json.loads(text.decode())  # UTF-8 alone
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _parquet(stream: Any, path: str, source: CapturedSource) -> Iterator[tuple[str, Any]]:
    with pq.ParquetFile(stream) as file:
        known = file.schema_arrow.names
        wanted = [name for name in dict.fromkeys(each.partition(".")[0] for each in _fields(source)) if name in known]
        whole = [each for each in _fields(source) if each in known]
        number = 0
        for batch in file.iter_batches(_ROWS, columns=list(dict.fromkeys([*wanted, *whole, *_also(known)]))):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row


def _also(known: list[str]) -> list[str]:
    return [name for name in ("request_time", "request_metadata", "status_code") if name in known]


def _fields(source: CapturedSource) -> list[str]:
    maps = [value for value in (source.inputs, source.outputs, source.labels) if isinstance(value, Mapping)]
    single = (
        source.request_id, source.row, source.captured_at, source.version, source.request, source.response,
        source.endpoint_field,
    )  # fmt: skip
    return [*filter(None, single), *(path for value in maps for path in value.values())]


def find_field(value: Any, path: str, where: str) -> Any:
    """Returns a field of an object by its path.

    Raises:
        MissingColumn: there is no such field.
    """
    if isinstance(value, Mapping) and path in value:
        return value[path]
    result = value
    for name in path.split("."):
        if isinstance(result, list) and result and isinstance(result[0], tuple):  # a map of Parquet
            result = dict(result)
        if not isinstance(result, Mapping) or name not in result:
            names = ", ".join(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise MissingColumn(where, path).with_text(
                f"{where}: there is no field {path!r}; the entry has {names[:300]}"
            )
        result = result[name]
    return result


def time_us(value: Any, source: CapturedSource, name: str, where: str) -> int:
    """Returns a time in microseconds since the epoch.

    Raises:
        BadInput: it is no time, has no zone, or is a number without a ``time_unit``.
    """
    result: int | None = None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise BadInput(
                f"{where}: {name!r} is {value!r}; expected a time in ISO 8601, such as 2026-03-01T10:00:00Z"
            ) from None
    if isinstance(value, datetime):
        if value.tzinfo is None and source.time_zone is None:
            raise BadInput(
                f"{where}: {name!r} is {value.isoformat()}, without a zone; if it is UTC, give the source "
                "time_zone='UTC'"
            )
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
        result = (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds
    elif isinstance(value, int | float) and not isinstance(value, bool) and value == value:
        if source.time_unit is None:
            raise BadInput(
                f"{where}: {name!r} is {value}; give the source the time_unit of numbers: {', '.join(TIME_UNITS)}"
            )
        if abs(value) < 2**63:
            result = round(value * TIME_UNITS[source.time_unit])
    if result is None or result // 10**6 not in CALENDAR_S:
        raise BadInput(f"{where}: {name!r} is {value!r}; expected a time in the years 1 to 9999")
    return result


def entries_of(value: Mapping[str, Any], number: int, path: str, where: str, source: CapturedSource) -> LogEntry:
    """Returns what an object of a log says of a request, except a KServe event.

    Raises:
        BadInput: a field is missing or has another form.
        Unusable: the request was not answered.
    """
    if source.layout == "sagemaker":
        return _of_sagemaker(value, number, path, where, source)
    return _of_fields(value, number, where, source)


def _common(value: Mapping[str, Any], number: int, where: str, source: CapturedSource) -> dict[str, Any]:
    request_id = find_field(value, str(source.request_id), where)
    if not isinstance(request_id, str | int) or isinstance(request_id, bool) or request_id == "":
        raise BadInput(f"{where}: {source.request_id!r} is {request_id!r}; expected the id of the request")
    name = _present(str(source.captured_at), value, source)
    at_us = time_us(find_field(value, name, where), source, name, where)
    return {"where": where, "number": number, "request_id": str(request_id), "at_us": at_us}


def _model(answer: Any) -> str | None:
    """Returns the model that an answer of the Open Inference Protocol names."""
    body = json_object(answer) or {}
    return str(body["model_name"]) if "model_name" in body and "outputs" in body else None


def _present(name: str, value: Mapping[str, Any], source: CapturedSource) -> str:
    """Returns the name of a field, or of the one that the other kind of inference table has instead."""
    other = _ALSO.get(name, "") if source.layout == "databricks" else ""
    return other if name not in value and other.partition(".")[0] in value else name


def _name(value: Any) -> str:
    return "" if value is None else str(value)


def _of_fields(value: Mapping[str, Any], number: int, where: str, source: CapturedSource) -> LogEntry:
    common = _common(value, number, where, source)
    status = value.get("status_code") if source.layout == "databricks" else None
    if isinstance(status, int) and status not in _OK:
        raise Unusable(f"answered with status {status}")
    row = find_field(value, source.row, where) if source.row else 0
    if type(row) is not int or not 0 <= row < 2**31:
        raise BadInput(f"{where}: {source.row!r} is {row!r}; expected the number of a row, 0 or more")
    inputs: Any
    outputs: Any = None
    if isinstance(source.inputs, Mapping):
        inputs = {name: find_field(value, path, where) for name, path in source.inputs.items()}
        if source.mode == "all" and isinstance(source.outputs, Mapping):
            outputs = {name: find_field(value, path, where) for name, path in source.outputs.items()}
    else:
        inputs = find_field(value, str(source.request), where)
        if inputs is None and source.layout == "databricks":  # it was larger than Databricks logs
            raise Unusable("without a request")
        outputs = find_field(value, str(source.response), where) if source.mode == "all" else None
        if source.mode == "all" and outputs is None:
            raise Unusable("without a response")
        outputs = json_object(outputs) or outputs  # parsed once
    return LogEntry(
        **common,
        row=row,
        version=_name(find_field(value, _present(source.version, value, source), where)) if source.version else "",
        endpoint=_name(find_field(value, source.endpoint_field, where)) if source.endpoint_field else _model(outputs),
        inputs=inputs,
        outputs=outputs,
        labels={name: find_field(value, path, where) for name, path in source.labels.items()},
    )


def _of_sagemaker(value: Mapping[str, Any], number: int, path: str, where: str, source: CapturedSource) -> LogEntry:
    """Returns an entry of SageMaker's data capture, below ``<endpoint>/<variant>/<year>/<month>/<day>/<hour>/``."""
    place = _SAGEMAKER.search(path)
    if place is None:
        raise BadInput(
            f"{path}: expected data capture's folders, <endpoint>/<variant>/<yyyy>/<mm>/<dd>/<hh>/, before the file's "
            "name"
        )
    capture = find_field(value, "captureData", where)
    bodies = list[Any]()
    for name in ("endpointInput", "endpointOutput"):
        part = capture.get(name) if isinstance(capture, Mapping) else None
        if part is None:
            bodies.append(None)
            continue
        bodies.append(decoded(find_field(part, "data", f"{where}, {name}"), part.get("encoding"), f"{where}, {name}"))
    if bodies[0] is None:
        raise BadInput(f"{where}: there is no 'endpointInput'; let data capture keep inputs (CaptureMode: Input)")
    if bodies[1] is None and source.mode == "all":
        raise Unusable("without a response")
    common = _common(value, number, where, source)
    outputs = bodies[1] if source.mode == "all" else None
    labels = {name: find_field(value, field_, where) for name, field_ in source.labels.items()}
    return LogEntry(
        **common, row=0, version=place[2], endpoint=place[1], inputs=bodies[0], outputs=outputs, labels=labels
    )


class KServeEvents:
    """Joins the events of KServe's logger, one for the request and one for the response, by their id."""

    def __init__(self, source: CapturedSource) -> None:
        self._source = source
        self._waiting: dict[str, tuple[str, LogEntry]] = {}

    def add(self, value: Mapping[str, Any], number: int, where: str) -> LogEntry | None:
        """Returns the entry that an event completes; None if it waits for the other event, or is a copy of one.

        Raises:
            BadInput: it is not such an event.
            Unusable: it is an event of another kind.
        """
        source, kind = self._source, str(find_field(value, "type", where))
        if kind.removeprefix(_EVENTS) not in ("request", "response"):
            raise Unusable(f"an event of type {kind[:80]}")
        body = (
            decoded(value["data_base64"], "BASE64", where)
            if "data_base64" in value
            else find_field(value, "data", where)
        )
        is_request = kind.endswith("request")
        name = str(source.endpoint_field)
        entry = LogEntry(
            **_common(value, number, where, source),
            row=0,
            version=_name(value.get(str(source.version))),
            endpoint=_name(find_field(value, name, where)),
            inputs=body if is_request else None,
            outputs=None if is_request else body,
        )
        if source.mode == "inputs":
            return entry if is_request else None
        waiting = self._waiting.get(entry.request_id)
        if waiting is None or waiting[0] == kind:
            self._waiting.setdefault(entry.request_id, (kind, entry))
            return None
        # It stays, so that each copy of an event makes a copy of the entry.
        request, response = (entry, waiting[1]) if is_request else (waiting[1], entry)
        return replace(
            request,
            where=where,  # of the later event, so that a copy of the response is not taken for the same entry
            number=max(number, waiting[1].number),
            outputs=response.outputs,
            version=_version(response),
        )

    def unanswered(self, entries: set[str]) -> list[LogEntry]:
        """Returns the first events of requests that are not among the ids of complete entries."""
        return [entry for id_, (_, entry) in self._waiting.items() if id_ not in entries]


def _version(response: LogEntry) -> str:
    """Returns the version that the response of the Open Inference Protocol says, or else the event's."""
    version = (json_object(response.outputs) or {}).get("model_version")
    return str(version) if version else response.version
