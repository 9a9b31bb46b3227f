"""Prepares in the step's process: ``prepare(connection, tables)`` with a DuckDB relation for each table.

The function returns a relation, or any frame or stream of Arrow: SQL, Polars and pandas. A relation is streamed, once,
into a file for each partition, so that memory holds a batch, and then a partition for each core; what DuckDB cannot
hold in half of the machine's memory, it spills to the step's scratch folder.
"""

from __future__ import annotations

import glob
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from pyarrow import ipc

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.machine_memory import memory_bytes
from airflow_hops.core.parquet_writer import parquet_writer
from airflow_hops.core.prepare.options import PrepareOptions
from airflow_hops.ml.prepare.classes import Classifier
from airflow_hops.ml.prepare.columns import REASON_COLUMN, check_columns
from airflow_hops.ml.prepare.engine import PreparedRows, WritePart, call_prepare, described
from airflow_hops.ml.prepare.hashes import partitions, stable_order
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.plain import plain
from airflow_hops.ml.spark.pools import IN_PROCESS, WorkSummary, checked
from airflow_hops.ml.step.context import StepContext

_BATCH_ROWS = 1 << 17
_EXPECTED = "a DuckDB relation, a Polars or pandas frame, or a PyArrow table or reader"


class DuckRows(PreparedRows):
    """A relation, which every pass runs again."""

    def __init__(self, relation: duckdb.DuckDBPyRelation, name: str, folder: Path) -> None:
        self.relation, self.name, self.folder, self.pool = relation, name, folder, IN_PROCESS
        self.schema = _arrow_schema(relation)

    def summarize(self, columns: Sequence[str], work: Callable[[Iterable[Any]], str]) -> list[str]:
        """Calls ``work`` once."""
        return [work(self._batches(self.relation.project(", ".join(map(quoted, columns)))))]

    def write(self, classifier: Classifier, parts: int, write: WritePart) -> list[str]:
        """Appends classified rows to a file of each partition, then writes the partitions in parallel."""
        schema, summary = classifier.output, WorkSummary()
        identity = schema.get_field_index(classifier.identity)
        paths = [self.folder / f"part-{number}.arrow" for number in range(parts)]

        def classified(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
            rows = classifier.classify(batch)
            of_rows = partitions(rows.column(identity), parts)
            ends = np.cumsum(np.bincount(of_rows, minlength=parts))
            return rows.take(pa.array(stable_order(of_rows))), ends

        with summary.recording_errors(str(self.folder)), ExitStack() as stack:
            sinks = [stack.enter_context(ipc.new_file(path, schema)) for path in paths]
            for rows, ends in _in_threads(classified, self._batches(self.relation)):
                for sink, begin, end in zip(sinks, [0, *ends[:-1]], ends, strict=True):
                    if end > begin:
                        sink.write_batch(rows.slice(begin, end - begin))
        checked([summary])

        def write_part(number: int) -> str:
            with ipc.open_file(paths[number]) as file:
                return write(number, map(file.get_batch, range(file.num_record_batches)))

        with ThreadPoolExecutor(_cores()) as threads:
            return list(threads.map(write_part, range(parts)))

    def _batches(self, relation: duckdb.DuckDBPyRelation) -> Iterator[pa.RecordBatch]:
        try:
            yield from relation.to_arrow_reader(_BATCH_ROWS)
        except duckdb.OutOfMemoryException as error:
            raise HopsError(f"{self.name}: DuckDB ran out of memory, or of space in {self.folder}: {error}") from error
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise BadInput(f"{self.name} raised {described(error)}") from error


@contextmanager
def prepared_rows(
    context: StepContext, options: PrepareOptions, function: Callable[..., object], tables: Sequence[str], parts: int
) -> Iterator[DuckRows]:
    """Opens DuckDB and calls the user's function; see :class:`airflow_hops.ml.prepare.engine.EngineRows`."""
    folder = context.scratch / "duckdb"
    folder.mkdir()
    settings = {
        "memory_limit": f"{memory_bytes() // 2}B",
        "temp_directory": str(folder),
        "threads": str(_cores()),
        "autoinstall_known_extensions": "false",  # no code from the internet
    }
    with duckdb.connect(config=settings) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        snapshot = context.local("tables")
        _check_case(tables, "the snapshot", "tables")
        relations = {name: read_table(connection, snapshot / name, folder) for name in tables}
        for name, relation in relations.items():
            relation.create_view(name)
        context.progress(0.1, "DuckDB has started")
        returned = call_prepare(options.prepare, function, connection, relations)
        yield DuckRows(_with_reasons(connection, returned, options, folder), options.prepare, folder)


def read_table(connection: duckdb.DuckDBPyConnection, folder: Path, scratch: Path) -> duckdb.DuckDBPyRelation:
    """Opens a table of a snapshot; durations are intervals, as in Spark.

    Raises:
        BadInput: names differ only in case, or durations are within lists, structs or maps.
    """
    files = sorted(folder.glob("*.parquet"))
    schema = scan.schema(files[0])
    _check_case(schema.names, f"table {folder.name!r}")
    # Values in the names of a store's folders are no columns.
    paths = [glob.escape(str(_without_bounds(path, scratch))) for path in files]
    relation = connection.read_parquet(paths, hive_partitioning=False)
    # DuckDB 2.0: does not know Arrow's note in the footer, which durations have in Parquet.
    durations = {field.name: field.type for field in schema if _has_duration(field.type)}
    for name, kind in durations.items():
        if kind != pa.duration("us"):
            raise BadInput(
                f"table {folder.name!r}: column {name!r} is {kind}, which DuckDB would read as integers; leave "
                "it out with the source's 'columns', or prepare with engine='spark'"
            )
    columns = (f"to_microseconds({quoted(n)}) AS {quoted(n)}" if n in durations else quoted(n) for n in schema.names)
    return relation.project(", ".join(columns)) if durations else relation


def _has_duration(kind: pa.DataType) -> bool:
    return pa.types.is_duration(kind) or any(_has_duration(kind.field(n).type) for n in range(kind.num_fields))


def _without_bounds(path: Path, scratch: Path) -> Path:
    """Returns a file, or, if it was written with bounds of floats, which may lack NaN, a copy without them."""
    if not scan.has_float_bounds(path):
        return path
    copy = scratch / f"{path.parent.name}-{path.name}"
    with parquet_writer(copy, scan.schema(path), version="2.6", compression="snappy") as writer:
        for batch in scan.batches(path):
            writer.write_batch(batch)
    return copy


def quoted(name: str) -> str:
    """Returns a name in SQL."""
    return '"{}"'.format(name.replace('"', '""'))


def _with_reasons(
    connection: duckdb.DuckDBPyConnection, returned: Any, options: PrepareOptions, folder: Path
) -> duckdb.DuckDBPyRelation:
    """Returns a relation of what the user's function returned, with the conditions of ``reject``."""
    if isinstance(returned, duckdb.DuckDBPyRelation):
        try:
            schema = _arrow_schema(returned)
        except duckdb.Error as error:
            raise BadInput(f"{options.prepare} raised {described(error)}") from error
        check_columns(schema, options)
        _check_case(schema.names, "what prepare returned")
    else:
        reader = _reader(returned, options.prepare)
        check_columns(reader.schema, options)
        _check_case(reader.schema.names, "what prepare returned")
        # PyArrow 10.0: DuckDB scans tables from 14 on only, and a reader can be read only once.
        path = folder / "returned.parquet"
        schema = pa.schema([field.with_type(_written(pa.nulls(0, field.type)).type) for field in reader.schema])
        # In version 2.6, times have nanoseconds.
        with parquet_writer(path, schema, version="2.6", compression="none", use_dictionary=False) as writer:
            for batch in reader:
                writer.write_batch(pa.RecordBatch.from_arrays([*map(_written, batch.columns)], schema=schema))
        returned = connection.read_parquet([glob.escape(str(path))], hive_partitioning=False)
    columns = dict(zip(returned.columns, map(str, returned.types), strict=True))
    reasons = [f"{quoted(REASON_COLUMN)}::VARCHAR"] if columns.pop(REASON_COLUMN, None) else []
    for reason, condition in options.reject.items():
        text = reason.replace("'", "''")
        reasons.append(f"CASE WHEN ({condition}\n) THEN '{text}' END")
        try:
            returned.project(reasons[-1])
        except duckdb.Error as error:
            raise BadInput(f"reject[{reason!r}]: {condition!r}: {described(error)}") from error
    # DuckDB 2.0: sums of integers have 128 bits, which Arrow would get as decimals.
    select = [
        f"{quoted(name)}::BIGINT AS {quoted(name)}" if kind in ("HUGEINT", "UHUGEINT") else quoted(name)
        for name, kind in columns.items()
    ]
    if reasons:
        select.append(f"coalesce({', '.join(reasons)}, NULL) AS {quoted(REASON_COLUMN)}")
    return returned.project(", ".join(select))


def _written(column: pa.Array) -> pa.Array:
    """Converts a column to a type that Arrow writes to Parquet; categories, whose codes may be unsigned, to values."""
    return plain(column.dictionary_decode() if pa.types.is_dictionary(column.type) else column)


def _reader(returned: object, name: str) -> pa.RecordBatchReader:
    """Returns a stream of a frame, a table or a reader."""
    if isinstance(returned, pa.RecordBatchReader):
        return returned
    try:
        if type(returned).__module__.startswith("pandas."):
            returned = pa.Table.from_pandas(returned, preserve_index=False)
        elif hasattr(returned, "to_arrow"):  # PyArrow 10.0: knows the interface below from 14 on; this is of Polars
            returned = returned.to_arrow()
        elif not isinstance(returned, pa.Table) and hasattr(returned, "__arrow_c_stream__"):
            returned = pa.RecordBatchReader.from_stream(returned)
    except (pa.ArrowException, TypeError, AttributeError, ValueError) as error:
        raise BadInput(f"{name} returned a {type(returned).__name__} without Arrow types: {error}") from error
    if isinstance(returned, pa.Table):
        return returned.to_reader(_BATCH_ROWS)
    if not isinstance(returned, pa.RecordBatchReader):
        raise BadInput(f"{name} returned a {type(returned).__name__}, expected {_EXPECTED}")
    return returned


def _arrow_schema(relation: duckdb.DuckDBPyRelation) -> pa.Schema:
    types = relation.limit(0).to_arrow_table().schema.types
    return pa.schema([pa.field(name, type_) for name, type_ in zip(relation.columns, types, strict=True)])


def _check_case(names: Sequence[str], where: str, kind: str = "columns") -> None:
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise BadInput(f"{where}: DuckDB does not tell the {kind} {other!r} and {name!r} apart; rename one of them")


def _in_threads(work: Callable[[Any], object], values: Iterable[object]) -> Iterator[Any]:
    """Maps like ``map``, in a thread for each core; reads as many values ahead, and one more."""
    with ThreadPoolExecutor(cores := _cores()) as threads:
        ahead: deque[Any] = deque()
        for value in values:
            ahead.append(threads.submit(work, value))
            if len(ahead) > cores + 1:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _cores() -> int:
    return len(os.sched_getaffinity(0))
