"""TFRecord files of ``tf.Example``: a file is decoded whole, by TFX's decoder, to the columns that Parquet has."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from airflow_hops.artifacts import BadInput
from airflow_hops.hops.reader.columns import ColumnType, column_type
from airflow_hops.hops.reader.files import SplitFiles
from airflow_hops.hops.reader.units import Unit
from airflow_hops.runtime.feature_specs import OutputSpec
from airflow_hops.runtime.readers import tfrecord

COUNTS_FILE = "counts.json"
_RECORDS_AT_ONCE = 4096
_RECORDS_LOOKED_AT = 1024


class TFRecordUnits:
    """The files of a split, each of which is a unit.

    Types and widths are those of the first records, as the format does not say them: one value a record, as many in
    each, or any number (ragged).

    Args:
        files: The files.
        columns: The features to read, with what is expected of them, or None.

    Attributes:
        units: The files that hold records.
        kinds: What the features hold.

    Raises:
        BadInput: a file cannot be read, or lacks a feature.
    """

    def __init__(self, files: SplitFiles, columns: Mapping[str, OutputSpec | None]) -> None:
        self._files = files
        counts = record_counts(files)
        holding = [number for number, rows in enumerate(counts) if rows]
        self.kinds: dict[str, ColumnType] = {}
        self.units: list[Unit] = []
        if not holding:
            return
        name = files.name(holding[0])
        first = _decoder(None).DecodeBatch(_first_records(files, holding))
        self.kinds = {column: _kind(first, column, spec, name) for column, spec in columns.items()}
        self._types = {column: _tf_type(first.schema.field(column).type) for column in columns}
        row_bytes = max(1, sum(_column_bytes(first, column, kind) for column, kind in self.kinds.items()) // len(first))
        self.units = [Unit(number, 0, counts[number], counts[number] * row_bytes) for number in holding]

    def read(self, unit: Unit) -> pa.Table:
        """The features of a file's records, decoded.

        Raises:
            BadInput: the file is damaged, has another number of records, or features of other types.
        """
        name = self._files.name(unit.file)
        decoder = _decoder(self._types)
        parts = []
        for records in _batches(self._files, unit.file, _RECORDS_AT_ONCE):
            try:
                decoded = decoder.DecodeBatch(records)
            except (ValueError, RuntimeError) as error:
                raise BadInput(f"{name}: {_first_line(error)}; expected tf.Example of the first file's types") from None
            parts.append(
                pa.table([_column(decoded, column, kind, name) for column, kind in self.kinds.items()], [*self.kinds])
            )
        table = pa.concat_tables(parts)
        if table.num_rows != unit.rows:
            raise BadInput(f"{name} holds {table.num_rows} records, but {unit.rows} were counted ({COUNTS_FILE})")
        return table

    def where(self, unit: Unit) -> str:
        """A unit's name, for messages."""
        return self._files.name(unit.file)


def record_counts(files: SplitFiles) -> list[int]:
    """Records of each file: from ``counts.json`` beside them (names to numbers), else counted, once for each state.

    Raises:
        BadInput: a file is damaged, or ``counts.json`` is something else.
    """
    told = _told_counts(files)
    return [
        told[name] if (name := files.name(number).rpartition("/")[2]) in told else _counted(files, number)
        for number in range(len(files))
    ]


def _told_counts(files: SplitFiles) -> dict[str, int]:
    text = files.beside(COUNTS_FILE)
    if text is None:
        return {}
    try:
        counts = json.loads(text)
        return {str(name): int(rows) for name, rows in counts.items()}
    except (ValueError, TypeError, AttributeError):
        raise BadInput(
            f"{files.source}/{COUNTS_FILE}: expected a JSON object of file names and numbers of records"
        ) from None


def _counted(files: SplitFiles, number: int) -> int:
    key = hashlib.sha256(files.version(number).encode()).hexdigest()[:32]
    known = files.cache_dir / "counts" / key
    try:
        return int(known.read_text())
    except (FileNotFoundError, ValueError):
        pass
    name, path = files.name(number), Path(files.local(number))
    if path.suffix == ".gz" or name.endswith(".gz"):
        rows = sum(len(records) for records in _batches(files, number, _RECORDS_AT_ONCE))
    else:
        with path.open("rb") as stream:
            rows = sum(1 for _ in tfrecord.record_bounds(stream, name))
    known.parent.mkdir(parents=True, exist_ok=True)
    part = known.with_name(f"{known.name}.{os.getpid()}")
    part.write_text(str(rows))
    part.replace(known)
    return rows


def _first_records(files: SplitFiles, holding: Sequence[int]) -> list[bytes]:
    found: list[bytes] = []
    for number in holding:
        found += next(_batches(files, number, _RECORDS_LOOKED_AT))
        if len(found) >= _RECORDS_LOOKED_AT:
            break
    return found


def _batches(files: SplitFiles, number: int, size: int) -> Iterator[list[bytes]]:
    compression = "GZIP" if files.name(number).endswith(".gz") else ""
    try:
        dataset = tf.data.TFRecordDataset(files.local(number), compression, buffer_size=1 << 20).batch(size)
        for batch in dataset:
            yield batch.numpy().tolist()
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        raise BadInput(_what_is_wrong(files, number) or f"{files.name(number)}: {_first_line(error)}") from None


def _what_is_wrong(files: SplitFiles, number: int) -> str | None:
    """Names the record that TensorFlow could not read."""
    name = files.name(number)
    opening: Any = gzip.open if name.endswith(".gz") else Path.open
    read = 0
    try:
        with opening(Path(files.local(number)), "rb") as stream:
            for _ in tfrecord.records(stream, name):
                read += 1
    except BadInput as error:
        return f"{error} (record {read}, counted from 0)"
    except (EOFError, OSError, zlib.error) as error:
        return f"{name}, after record {read}: it cannot be decompressed ({error}); the file is truncated or damaged"
    return None


def _decoder(types: Mapping[str, str] | None) -> Any:
    """TFX's decoder of ``tf.Example``; without types, of all features as it finds them."""
    from tensorflow_metadata.proto.v0 import schema_pb2
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    if types is None:
        return ExamplesToRecordBatchDecoder()
    schema = schema_pb2.Schema()
    for name, kind in types.items():
        schema.feature.add(name=name, type=schema_pb2.FeatureType.Value(kind))
    return ExamplesToRecordBatchDecoder(schema.SerializeToString())


def _tf_type(found: pa.DataType) -> str:
    value = found.value_type
    return "INT" if pa.types.is_integer(value) else "FLOAT" if pa.types.is_floating(value) else "BYTES"


def _kind(batch: pa.RecordBatch, column: str, spec: OutputSpec | None, name: str) -> ColumnType:
    number = batch.schema.get_field_index(column)
    if number < 0 or pa.types.is_null(batch.column(number).type):
        raise BadInput(f"{name}: there is no feature {column!r}; it has {', '.join(sorted(batch.schema.names))}")
    found = batch.column(number)
    value = column_type(found.type.value_type, f"{name}: feature {column!r}").arrow
    if spec is not None and spec.image is None:
        wanted = tf.as_dtype(spec.dtype)
        numeric = not pa.types.is_binary(value) and wanted != tf.string
        if not numeric and tf.string not in (wanted, ColumnType(value).dtype):
            raise BadInput(f"{name}: feature {column!r} is {ColumnType(value)}, expected {spec.dtype}")
        return ColumnType(pa.from_numpy_dtype(wanted.as_numpy_dtype) if numeric else value, width=spec.width)
    lengths = _lengths(found)
    widest = int(lengths.max(initial=0))
    if widest <= 1:
        return ColumnType(value)
    return ColumnType(value, width=widest) if (lengths == widest).all() else ColumnType(value, is_ragged=True)


def _column(batch: pa.RecordBatch, column: str, kind: ColumnType, name: str) -> pa.Array:
    """A feature as :func:`airflow_hops.hops.reader.columns.to_arrays` takes it: lists, or one value a row or null."""
    found = batch.column(batch.schema.get_field_index(column))
    lengths = _lengths(found)
    values = found.flatten()
    if values.type != kind.arrow:
        values = pc.cast(values, kind.arrow)
    if kind.is_ragged or kind.width is not None:
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), values)
    if (lengths > 1).any():
        row = int((lengths > 1).argmax())
        raise BadInput(f"{name}: feature {column!r} has {lengths[row]} values in a record; expected one in each")
    if len(values) == len(lengths):
        return values
    places = np.cumsum(lengths) - 1
    return values.take(pa.array(places, pa.int64(), mask=lengths == 0))


def _lengths(found: pa.Array) -> np.ndarray[Any, Any]:
    lengths: np.ndarray[Any, Any] = pc.fill_null(pc.list_value_length(found), 0).to_numpy().astype(np.int64)
    return lengths


def _column_bytes(batch: pa.RecordBatch, column: str, kind: ColumnType) -> int:
    found = batch.column(batch.schema.get_field_index(column))
    values = int(_lengths(found).sum())
    length = found.nbytes / max(values, 1)
    return int(len(batch) * kind.row_bytes(values / len(batch), length))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
