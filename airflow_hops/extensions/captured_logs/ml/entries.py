"""Entries of a log: the objects of a file's part, and what each says of a request."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from airflow_hops.core.errors import HopsError, UnreadableFile
from airflow_hops.core.times import parse_time
from airflow_hops.extensions.captured_logs.core.source import KSERVE, TIME_UNITS, CapturedSource
from airflow_hops.extensions.captured_logs.core.windows import LogPart
from airflow_hops.extensions.captured_logs.ml.bodies import REFUSED, Columns, columns_of_bodies, is_answer, parsed
from airflow_hops.extensions.captured_logs.ml.json_texts import Unusable, concatenated, json_value, shown
from airflow_hops.ml.readers.types import CALENDAR_S

_ROWS, _FEW_ROWS = 10_000, 64
_BLOCK = 1 << 20
_MOST_LINE = 1 << 27
"""Limit for a line; a file of Firehose may be one, of up to 128 MB."""
_MOST_ID = 1000
_GROUP_BYTES = 32 << 20
"""Row groups of more bytes are read by few rows at a time."""
_SAGEMAKER = re.compile(r"([^/]+)/([^/]+)/\d{4}/\d\d/\d\d/\d\d/[^/]+$")
_SIDES = ("Input", "Output")
_OK = range(200, 300)
_ALSO = {"timestamp_ms": "request_time", "served_entity_id": "request_metadata.model_version"}
"""Field of the other kind of inference table, by field."""


@dataclass(frozen=True)
class LogObject:
    """An object of a log, or None for what is none, at a place of a file.

    ``size`` is in bytes, ``number`` that of the window which read it first, ``part`` the position in the plan, and
    ``modified`` returns when the file was written.
    """

    value: Any
    where: str
    size: int
    path: str
    number: int
    part: int
    modified: Callable[[], datetime]


@dataclass(frozen=True)
class LogEntry:
    """A request, or a row of one, in a log.

    Attributes:
        where: Place in the log.
        number: Number of the window that read it first.
        request_id: Its id.
        at_us: Time, microseconds since the epoch.
        row: Number of its first row.
        version: Name of the version that answered, in the log's words.
        endpoint: Name of the endpoint; None if the log has none.
        inputs: The request: a body, or features by name.
        outputs: The response: a body as :func:`parsed` returns it, or predictions by name; None without one.
        labels: Labels by name.
        size: Bytes of the entry in the log.
        encoding: Encoding of the request, if the log names it.
        parts: Positions in the plan of the parts that it is in.
    """

    where: str
    number: int
    request_id: str
    at_us: int
    row: int = 0
    version: str = ""
    endpoint: str | None = None
    inputs: Any = None
    outputs: Any = None
    labels: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0
    encoding: str | None = None
    parts: tuple[int, ...] = ()

    def columns(self, source: CapturedSource) -> Columns:
        """Decodes the captured columns of the entry's rows.

        Raises:
            Unusable: a body cannot be decoded, or the response has another number of rows.
        """
        if isinstance(source.inputs, Mapping):
            sides = (self.inputs, self.outputs or {})
            inputs, outputs = ({name: [value] for name, value in side.items()} for side in sides)
        else:
            names = () if isinstance(source.outputs, Mapping) else source.outputs
            request = parsed(self.inputs, self.encoding, f"{self.where}, request")
            inputs, outputs = columns_of_bodies(request, self.outputs, source.inputs, names, self.where)
        rows = len(next(iter(inputs.values()), ()))
        return {
            **{f"input.{name}": values for name, values in inputs.items()},
            **{f"output.{name}": values for name, values in outputs.items()},
            **{f"label.{name}": [value] * rows for name, value in self.labels.items()},
        }


def read_part(fs: Any, part: LogPart, index: int, source: CapturedSource) -> Iterator[LogObject]:
    """Yields the objects in a part of a file, which is at a position in the plan.

    Raises:
        BadInput: the file is damaged.
        HopsError: the store does not answer.
    """
    known = (part.path, part.number, index, cache(partial(fs.modified, part.path)))
    try:
        with fs.open(part.path, "rb") as stream:
            if part.format in ("parquet", "csv"):
                rows = _parquet(stream, source) if part.format == "parquet" else _csv(stream, part.end)
                for number, value in enumerate(rows, 1):
                    yield LogObject(value, f"{part.path}, row {number}", _size(value), *known)
                return
            stream.seek(part.start)
            position = part.start
            for number, (line, length) in enumerate(_lines(stream, part), 1):
                place = f"line {number}" if not part.start else f"byte {position}"
                position += length
                text = line.removeprefix(b"\xef\xbb\xbf").strip()
                for where, value, size in _objects(text, f"{part.path}, {place}", source) if text else ():
                    yield LogObject(value, where, size, *known)
    except (EOFError, zlib.error, gzip.BadGzipFile, pa.ArrowInvalid) as error:
        raise UnreadableFile(part.path, f": the file is damaged, or not finished ({error})") from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise HopsError(f"{part.path}: cannot be read: {type(error).__name__}: {error}") from error


def _lines(stream: Any, part: LogPart) -> Iterator[tuple[bytes, int]]:
    """Yields the lines of a part and their lengths; of one beyond the limit, its beginning alone."""
    left, pieces, length = part.end - part.start, list[bytes](), 0
    content = gzip.GzipFile(fileobj=stream) if part.format == "gzip" else stream
    while block := content.read(_BLOCK if part.format == "gzip" else min(_BLOCK, left)):
        left -= len(block)
        for line in io.BytesIO(block):
            if length <= _MOST_LINE:
                pieces.append(line)
            length += len(line)
            if line.endswith(b"\n"):
                yield b"".join(pieces), length
                pieces, length = [], 0
    if pieces:
        yield b"".join(pieces), length


def _csv(stream: Any, size: int) -> list[dict[str, Any]]:
    """Returns the rows of a table with a header, whose values are all texts."""
    names = stream.readline().decode(errors="replace").strip().split(",")
    rows = pcsv.ReadOptions(column_names=names, block_size=size)
    texts = pcsv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    return pcsv.read_csv(stream, rows, pcsv.ParseOptions(newlines_in_values=True), texts).to_pylist()  # type: ignore[no-any-return]


def _objects(text: bytes, where: str, source: CapturedSource) -> Iterator[tuple[str, Any, int]]:
    """Yields the objects of a line, which may be several, as Firehose joins them, and KServe in a list."""
    try:
        value = json_value(text)
        values = value if isinstance(value, list) and source.layout == KSERVE else [value]
        objects = ((each, len(text) // len(values)) for each in values)
    except ValueError:
        objects = concatenated(text)  # type: ignore[assignment]
    for number, (value, size) in enumerate(objects, 1):
        place = where if number == 1 else f"{where}, object {number}"
        yield place, value if isinstance(value, dict) else None, size


def _parquet(stream: Any, source: CapturedSource) -> Iterator[dict[str, Any]]:
    metadata = pq.read_metadata(stream)
    leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    # As dictionaries, which have a text of many rows once.
    texts = [
        leaf.path
        for leaf in leaves
        if leaf.physical_type == "BYTE_ARRAY" and leaf.converted_type != "DECIMAL" and not leaf.max_repetition_level
    ]
    sizes = (metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    rows = _ROWS if max(sizes, default=0) <= _GROUP_BYTES else _FEW_ROWS
    with pq.ParquetFile(stream, read_dictionary=texts) as file:
        known = file.schema_arrow.names
        wanted = [name for name in dict.fromkeys(each.partition(".")[0] for each in _fields(source)) if name in known]
        whole = [each for each in _fields(source) if each in known]
        also = [name for name in ("request_time", "request_metadata", "status_code") if name in known]
        columns = known if source.layout == KSERVE else list(dict.fromkeys([*wanted, *whole, *also]))
        for batch in file.iter_batches(rows, columns=columns):
            for values in zip(*map(_values, batch.columns), strict=True):
                yield dict(zip(batch.schema.names, values, strict=True))


def _size(value: Any) -> int:
    """Returns the bytes of texts, also in objects."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return len(value) if isinstance(value, str | bytes) else 8


def _values(array: pa.Array) -> list[Any]:
    """Returns values of Arrow as those of Python; rows with the same text share it."""
    if pa.types.is_dictionary(array.type):
        texts = array.dictionary.to_pylist()
        return [None if index is None else texts[index] for index in array.indices.to_pylist()]
    if pa.types.is_struct(array.type):
        names = [field.name for field in array.type]
        rows = zip(*map(_values, array.flatten()), strict=True)
        is_valid = array.is_valid().to_pylist()
        objects = (dict(zip(names, row, strict=True)) for row in rows)
        return [each if valid else None for each, valid in zip(objects, is_valid, strict=True)]
    values: list[Any] = array.to_pylist()
    return values


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
        Unusable: there is no such field.
    """
    if isinstance(value, dict) and path in value:
        return value[path]
    result = value
    for name in path.split("."):
        if isinstance(result, list) and result and isinstance(result[0], tuple):  # a map of Parquet
            result = dict(result)
        if not isinstance(result, dict) or name not in result:
            names = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
            raise Unusable(f"without {path!r}", f"{where}: there is no field {path!r}; the entry has {names[:300]}")
        result = result[name]
    return result


def time_us(value: Any, source: CapturedSource, name: str, where: str) -> int:
    """Returns a time in microseconds since the epoch.

    Raises:
        Unusable: it is no time, has no zone, or is a number without a ``time_unit``.
    """
    problem = f"is {shown(value)}; expected a time in the years 1 to 9999"
    result: int | None = None
    if isinstance(value, str):
        try:
            value = parse_time(value.strip())
        except ValueError:
            problem = f"is {shown(value)}; expected a time in ISO 8601, such as 2026-03-01T10:00:00Z"
    if isinstance(value, datetime):
        if value.tzinfo is None and source.time_zone is None:
            problem = f"is {value.isoformat()}, without a zone; if it is UTC, give the source time_zone='UTC'"
        else:
            moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value
            since = moment - datetime(1970, 1, 1, tzinfo=UTC)
            result = (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
        if source.time_unit is None:
            problem = f"is {value}; give the source the time_unit of numbers: {', '.join(TIME_UNITS)}"
        else:
            result = round(value * TIME_UNITS[source.time_unit])
    if result is None or result // 10**6 not in CALENDAR_S:
        raise Unusable(f"{name!r} is not a time", f"{where}: {name!r} {problem}")
    return result


def entry_of(item: LogObject, source: CapturedSource) -> LogEntry:
    """Returns what an object of a log says of a request, except a KServe event.

    Raises:
        Unusable: a field is missing or has another form, or the request was not answered.
    """
    return _of_sagemaker(item, source) if source.layout == "sagemaker" else _of_fields(item, source)


def common_entry(item: LogObject, source: CapturedSource) -> LogEntry:
    """Returns an entry with the fields that all layouts have; raises Unusable."""
    value, where = item.value, item.where
    request_id = find_field(value, str(source.request_id), where)
    is_id = isinstance(request_id, str | int) and not isinstance(request_id, bool) and request_id != ""
    if not is_id or len(str(request_id)) > _MOST_ID or not is_unicode(str(request_id)):
        text = f"{source.request_id!r} is {shown(request_id)}; expected the id of the request, in Unicode"
        raise Unusable("without an id", f"{where}: {text}, of at most {_MOST_ID} characters")
    name = _present(str(source.captured_at), value, source)
    at_us = time_us(find_field(value, name, where), source, name, where)
    return LogEntry(where, item.number, str(request_id), at_us, size=item.size, parts=(item.part,))


def is_unicode(text: str) -> bool:
    """Returns whether a text has no surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def answer_of(data: Any, encoding: str | None, source: CapturedSource, where: str) -> Any:
    """Returns the body of an answer.

    Raises:
        Unusable: it has no predictions, so that nobody has to decode the request.
    """
    body = parsed(data, encoding, where)
    if not is_answer(body, source.outputs):
        names = ", ".join(map(repr, source.outputs))
        raise Unusable(REFUSED, f"{where}: the answer is {shown(body)}; outputs names {names}", is_fault=False)
    return body


def _model(answer: Any) -> str | None:
    """Returns the model that an answer of the Open Inference Protocol names."""
    is_named = isinstance(answer, dict) and "model_name" in answer and "outputs" in answer
    return name_of(answer["model_name"]) if is_named else None


def _present(name: str, value: Mapping[str, Any], source: CapturedSource) -> str:
    """Returns the name of a field, or of the one that the other kind of inference table has instead."""
    other = _ALSO.get(name, "") if source.layout == "databricks" else ""
    return other if name not in value and other.partition(".")[0] in value else name


def name_of(value: Any) -> str:
    """Returns the name that a log gives a version or endpoint."""
    return "" if value is None else str(value)[:_MOST_ID]


def _of_fields(item: LogObject, source: CapturedSource) -> LogEntry:
    value, where, common = item.value, item.where, common_entry(item, source)
    status = value.get("status_code") if source.layout == "databricks" else None
    if isinstance(status, int) and status not in _OK:
        raise Unusable(f"answered with status {status}", is_fault=False)
    row = find_field(value, source.row, where) if source.row else 0
    if type(row) is not int or not 0 <= row < 2**31:
        text = f"{where}: {source.row!r} is {shown(row)}; expected the number of a row, 0 or more"
        raise Unusable(f"{source.row!r} is not the number of a row", text)
    inputs: Any
    outputs: Any = None
    if isinstance(source.inputs, Mapping):
        inputs = {name: find_field(value, path, where) for name, path in source.inputs.items()}
        if source.mode == "all" and isinstance(source.outputs, Mapping):
            outputs = {name: find_field(value, path, where) for name, path in source.outputs.items()}
            if all(each is None for each in outputs.values()):
                raise Unusable(REFUSED, is_fault=False)
    else:
        inputs = find_field(value, str(source.request), where)
        if inputs is None and source.layout == "databricks":  # it was larger than Databricks logs
            raise Unusable("without a request", is_fault=False)
        if source.mode == "all":
            outputs = find_field(value, str(source.response), where)
            if outputs is None:
                raise Unusable("without a response", is_fault=False)
            outputs = answer_of(outputs, None, source, f"{where}, response")
    version = find_field(value, _present(source.version, value, source), where) if source.version else ""
    return replace(
        common,
        row=row,
        version=name_of(version),
        endpoint=name_of(find_field(value, source.endpoint_field, where)) if source.endpoint_field else _model(outputs),
        inputs=inputs,
        outputs=outputs,
        labels={name: find_field(value, path, where) for name, path in source.labels.items()},
    )


def _of_sagemaker(item: LogObject, source: CapturedSource) -> LogEntry:
    """Returns an entry of SageMaker's data capture, below ``<endpoint>/<variant>/<year>/<month>/<day>/<hour>/``."""
    value, where, place = item.value, item.where, _SAGEMAKER.search(item.path)
    if place is None:
        raise Unusable(
            "of another folder",
            f"{item.path}: expected data capture's folders, <endpoint>/<variant>/<yyyy>/<mm>/<dd>/<hh>/, before the "
            "file's name",
        )
    capture = find_field(value, "captureData", where)
    request, answer = (capture.get(f"endpoint{side}") if isinstance(capture, Mapping) else None for side in _SIDES)
    if request is None:
        text = f"{where}: there is no 'endpointInput'; let data capture keep inputs (CaptureMode: Input)"
        raise Unusable("without 'endpointInput'", text)
    if answer is None and source.mode == "all":
        raise Unusable("without a response", is_fault=False)
    common, outputs = common_entry(item, source), None
    if source.mode == "all":
        data, encoding = (find_field(answer, name, f"{where}, endpointOutput") for name in ("data", "encoding"))
        outputs = answer_of(data, encoding, source, f"{where}, endpointOutput")
    labels = {name: find_field(value, field_, where) for name, field_ in source.labels.items()}
    return replace(
        common,
        version=place[2],
        endpoint=place[1],
        inputs=find_field(request, "data", f"{where}, endpointInput"),
        outputs=outputs,
        labels=labels,
        encoding=request.get("encoding"),
    )
