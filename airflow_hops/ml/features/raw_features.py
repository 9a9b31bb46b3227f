"""Converts columns of examples to the dense arrays that a transform graph takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.errors import BadInput, MissingColumn, SchemaMismatch
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import File
from airflow_hops.ml.readers.joined_types import is_text
from airflow_hops.ml.readers.vectors import check_lengths, dense_vectors, is_list, split_dtype


def check_names(names: Iterable[str], where: str) -> None:
    """Checks that columns, in order, have names that are valid throughout a pipeline; ``where`` is for messages.

    Raises:
        BadInput: a name is empty, contains a NUL, or occurs twice.
    """
    seen: set[str] = set()
    for number, name in enumerate(names, 1):
        wrong = "no name" if not name else "a NUL in its name" if "\0" in name else "an earlier one's name"
        if not name or "\0" in name or name in seen:
            raise BadInput(f"{where}: column {number} ({name!r}) has {wrong}; rename it, or leave it out")
        seen.add(name)


def check_columns(path: File, inputs: Mapping[str, str], *, of: str = "the schema") -> None:
    """Compares a file's columns with the inputs of a transform or a model.

    Args:
        path: A Parquet file of examples, a :data:`~airflow_hops.ml.readers.artifact_files.File`.
        inputs: Dtypes (int64, float32, float64, string, or a vector's ``float32[16]``) of the columns by name.
        of: Origin of the inputs, for messages: the schema, or a model's signature.

    Raises:
        BadInput: the file cannot be read, or a column is missing or of another type.
    """
    schema = scan.schema(path)
    for name, dtype in inputs.items():
        if name not in schema.names:
            raise MissingColumn(path, name, f", which {of} has as {dtype}; the columns are {', '.join(schema.names)}")
        result = schema.field(name).type
        if not _fits(result, dtype):
            raise SchemaMismatch(path, name, result, dtype).with_text(
                f"{path}: column {name!r} is {result}, but {dtype} in {of}; cast it in prepare()"
            )


def dense_arrays(batch: pa.RecordBatch | pa.Table, inputs: Mapping[str, str], where: str) -> dict[str, np.ndarray]:
    """Converts Arrow columns to dense arrays: a missing float becomes NaN, a missing string empty.

    Args:
        batch: An Arrow record batch or table.
        inputs: Dtypes (int64, float32, float64, string, or a vector's ``float32[16]``) by name.
        where: File or split, for messages.

    Returns:
        Arrays of shape ``[rows]`` by name: int64, floats, or bytes as objects; for vectors ``[rows, width]``, with a
        missing vector all NaN.

    Raises:
        BadInput: an integer, a column, or a vector of values other than floats is missing, or a vector has another
            length.
    """
    arrays = {}
    for name, dtype in inputs.items():
        index = batch.schema.get_field_index(name)
        if index < 0:
            raise MissingColumn(where, name, f"; the columns are {', '.join(batch.schema.names)}")
        column = batch.column(index)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        values, width = split_dtype(dtype)
        if width is not None:
            if not is_list(column.type):
                raise BadInput(f"{where}: column {name!r} is {column.type}, expected vectors of {width} numbers")
            if values.startswith("float"):
                arrays[name] = dense_vectors(column, name, width, where).astype(values, copy=False)
                continue
            check_lengths(column, name, width, where)
            flat = pa.RecordBatch.from_arrays([column.flatten()], [name])
            arrays[name] = dense_arrays(flat, {name: values}, where)[name].reshape(-1, width)
        elif dtype == "int64":
            if column.null_count:
                raise BadInput(
                    f"{where}: column {name!r} is an integer and missing in {column.null_count} of {len(column)} rows; "
                    "an integer column cannot hold missing values: cast it to double in prepare(), or fill it there"
                )
            arrays[name] = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        elif dtype in ("float32", "float64"):
            floats = column.cast(pa.float64()) if not pa.types.is_floating(column.type) else column
            arrays[name] = floats.to_numpy(zero_copy_only=False).astype(dtype)
        else:
            arrays[name] = _strings(column)
    return arrays


def read_rows(
    files: Sequence[Path], inputs: Mapping[str, str], *, others: Sequence[str] = (), batch_rows: int = 8192
) -> Iterator[tuple[dict[str, np.ndarray], pa.RecordBatch]]:
    """Reads Parquet files batch by batch.

    Args:
        files: Parquet files.
        inputs: Dtypes of the raw features by name.
        others: Further columns to read (label, slices).
        batch_rows: Maximum number of rows per batch.

    Yields:
        The dense arrays of a batch, and its record batch.
    """
    for path in files:
        for batch in scan.batches(path, [*inputs, *others], rows=batch_rows):
            yield dense_arrays(batch, inputs, str(path)), batch


def _strings(column: pa.Array) -> np.ndarray:
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values = [_as_bytes(value) for value in encoded.dictionary.to_pylist()]
    # Missing values point behind the dictionary, to the empty string.
    table: np.ndarray = np.empty(len(values) + 1, dtype=object)
    table[:-1], table[-1] = values, b""
    indices = encoded.indices.cast(pa.int64()).fill_null(len(values)).to_numpy(zero_copy_only=False)
    strings: np.ndarray = table[indices]
    return strings


def _as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _fits(result: pa.DataType, dtype: str) -> bool:
    values, width = split_dtype(dtype)
    if width is not None:
        # Lengths of variable-size lists are checked when they are read.
        size = result.list_size if pa.types.is_fixed_size_list(result) else width
        return is_list(result) and size == width and _fits(result.value_type, values)
    if pa.types.is_dictionary(result):
        result = result.value_type
    if dtype == "string":
        return is_text(result)
    if dtype == "int64":
        return bool(pa.types.is_integer(result) or pa.types.is_boolean(result))
    return bool(pa.types.is_floating(result) or pa.types.is_integer(result))
