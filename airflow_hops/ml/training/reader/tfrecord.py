"""TFRecord files of ``tf.Example``: each file is decoded completely, into the same columns as Parquet."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from airflow_hops.core.errors import BadInput, UnreadableFile
from airflow_hops.core.processes.files import write_atomically
from airflow_hops.ml.features.feature_specs import OutputSpec
from airflow_hops.ml.readers import tfrecord
from airflow_hops.ml.training.reader.columns import SplitColumnType, arrow_type
from airflow_hops.ml.training.reader.files import SplitFiles
from airflow_hops.ml.training.reader.units import Unit

COUNTS_FILE = "counts.json"
_RECORDS_AT_ONCE = 4096
_RECORDS_LOOKED_AT = 256
_TYPES = {"int64_list": "int64", "float_list": "float32", "bytes_list": "string"}


class TFRecordUnits:
    """The files of a split; each is a unit.

    Types and widths come from the first records, because the format does not state them: one value per record, or the
    same number in each.

    Args:
        files: The files.
        columns: The features to read, with their expected types, or None.

    Attributes:
        units: The files that hold records.
        kinds: Types of the features.

    Raises:
        BadInput: a file cannot be read, lacks a feature, or records have different numbers of its values.
    """

    def __init__(self, files: SplitFiles, columns: Mapping[str, OutputSpec | None]) -> None:
        import tensorflow as tf

        self._files = files
        counts = record_counts(files)
        holding = [number for number, rows in enumerate(counts) if rows]
        self.kinds: dict[str, SplitColumnType] = {}
        self.units: list[Unit] = []
        if not holding:
            return
        records = _first_records(files, holding)
        self._wanted, row_bytes = {}, 0.0
        for column, spec in columns.items():
            dtype, lengths, value_bytes = _feature(records, column, files.name(holding[0]))
            self.kinds[column] = kind = _kind(dtype, lengths, spec, f"{files.source}: feature {column!r}")
            self._wanted[column] = tf.io.RaggedFeature(tf.as_dtype(dtype), row_splits_dtype=tf.int64)
            row_bytes += kind.row_bytes(value_bytes)
        self.units = [Unit(number, 0, counts[number], int(counts[number] * row_bytes) + 1) for number in holding]

    def read(self, unit: Unit) -> pa.Table:
        """Decodes the features of a file's records.

        Raises:
            BadInput: the file is damaged, or has a different number of records or features of other types.
        """
        import tensorflow as tf

        name = self._files.name(unit.file)
        parts, left = [], _records(self._files, unit.file)
        while records := list(islice(left, _RECORDS_AT_ONCE)):
            try:
                with tf.device("/CPU:0"):
                    decoded = tf.io.parse_example(records, self._wanted)
            except tf.errors.InvalidArgumentError as error:
                why = error.message.strip().partition("\n")[0]
                raise BadInput(f"{name}: {why}; all files of a split must hold tf.Example of the same types") from None
            parts.append(
                pa.table(
                    [_column(decoded[column], kind, column, name) for column, kind in self.kinds.items()], [*self.kinds]
                )
            )
        table = pa.concat_tables(parts)
        if table.num_rows != unit.rows:
            raise BadInput(f"{name} holds {table.num_rows} records, but {unit.rows} were counted ({COUNTS_FILE})")
        return table

    def where(self, unit: Unit) -> str:
        """Returns a unit's name, for errors."""
        return self._files.name(unit.file)


def record_counts(files: SplitFiles) -> list[int]:
    """Returns the number of records of each file: from ``counts.json`` in its folder (names to numbers), else counted.

    Raises:
        BadInput: a file is damaged, or ``counts.json`` does not have that form.
    """
    text, counts = files.beside(COUNTS_FILE), {}
    if text is not None:
        try:
            counts = {str(name): int(rows) for name, rows in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError):
            raise BadInput(
                f"{files.source}/{COUNTS_FILE}: expected a JSON object of file names and numbers of records"
            ) from None
    return [
        counts[name] if (name := files.name(number).rpartition("/")[2]) in counts else _counted(files, number)
        for number in range(len(files))
    ]


def _counted(files: SplitFiles, number: int) -> int:
    key = hashlib.sha256(files.version(number).encode()).hexdigest()[:32]
    known = files.cache_dir / "counts" / key
    try:
        return int(known.read_text())
    except (FileNotFoundError, ValueError):
        pass
    if files.name(number).endswith(".gz"):
        rows = sum(1 for _ in _records(files, number))
    else:
        with files.fetched(number).open() as stream:
            rows = sum(1 for _ in tfrecord.record_bounds(stream, files.name(number)))
    write_atomically(known, str(rows))
    return rows


def _first_records(files: SplitFiles, holding: Sequence[int]) -> list[object]:
    import tensorflow as tf

    records = islice(chain.from_iterable(_records(files, number) for number in holding), _RECORDS_LOOKED_AT)
    try:
        return [tf.train.Example.FromString(record) for record in records]
    except DecodeError:
        raise UnreadableFile(files.name(holding[0]), ": its records are not tf.Example") from None


def _records(files: SplitFiles, number: int) -> Iterator[bytes]:
    """Yields the records of a file; an error of a damaged one names it."""
    name = files.name(number)
    opening: Any = gzip.open if name.endswith(".gz") else Path.open
    read = 0
    try:
        with opening(Path(files.fetched(number).path), "rb") as stream:
            for record in tfrecord.records(stream, name):
                yield record
                read += 1
    except BadInput as error:
        raise BadInput(f"{error} (record {read}, counted from 0)") from None
    except (EOFError, OSError, zlib.error) as error:
        raise UnreadableFile(
            name, f", after record {read}: it cannot be decompressed ({error}); the file is truncated or damaged"
        ) from None


def _feature(records: Sequence[Any], column: str, name: str) -> tuple[str, list[int], float]:
    """Returns a feature's type, number of values in each record, and mean length of a string, in the first records."""
    lists = [record.features.feature[column] for record in records if column in record.features.feature]
    kinds = {kind for feature in lists if (kind := feature.WhichOneof("kind")) is not None}
    if len(kinds) != 1:
        known = sorted({result for record in records for result in record.features.feature})
        what = (
            f"is of several types ({', '.join(sorted(kinds))})"
            if kinds
            else f"does not exist; there are {', '.join(known)}"
        )
        raise BadInput(f"{name}: feature {column!r} {what}")
    kind = kinds.pop()
    values = [getattr(feature, kind).value for feature in lists]
    lengths = [len(result) for result in values] + [0] * (len(records) - len(lists))
    size = sum(len(value) for result in values for value in result) if kind == "bytes_list" else 0
    return _TYPES[kind], lengths, size / max(sum(lengths), 1)


def _kind(dtype: str, lengths: Sequence[int], spec: OutputSpec | None, where: str) -> SplitColumnType:
    if spec is not None and spec.encoding is None:
        if (spec.dtype == "string") != (dtype == "string"):
            raise BadInput(f"{where} is {dtype}, expected {spec.dtype}")
        return SplitColumnType(arrow_type(spec.dtype), width=spec.width)
    low, high = min(lengths), max(lengths)
    if high > 1 and low < high:
        raise BadInput(f"{where} has {low} to {high} values in a record; expected one number of values in all records")
    return SplitColumnType(arrow_type(dtype), width=high if high > 1 else None)


def _column(result: Any, kind: SplitColumnType, column: str, name: str) -> pa.Array:
    """Returns a feature as :func:`~airflow_hops.ml.training.reader.columns.to_array` takes it: lists, or values."""
    splits = result.row_splits.numpy()
    values = pa.array(result.values.numpy(), pa.binary() if result.dtype.name == "string" else None)
    if values.type != kind.arrow:
        values = pc.cast(values, kind.arrow)
    if kind.width is not None:
        return pa.ListArray.from_arrays(pa.array(splits.astype(np.int32)), values)
    lengths = np.diff(splits)
    if (lengths > 1).any():
        longest = int(lengths.max())
        raise BadInput(f"{name}: feature {column!r} has {longest} values in a record; expected one in each")
    if len(values) == len(lengths):
        return values
    return values.take(pa.array(splits[:-1], pa.int64(), mask=lengths == 0))
