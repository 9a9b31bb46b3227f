"""Writes the pages of statistics: distributions of features, and sampled rows.

Rows are encoded as :mod:`airflow_hops.core.artifacts.page_files` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.page_files import (
    PAGE_FILE,
    ROWS_FILE,
    PageIndex,
    PageView,
    Role,
    RowsColumn,
    RowsHeader,
    pack_rows,
)
from airflow_hops.ml.readers.vectors import is_list
from airflow_hops.ml.statistics.feature_figures import feature_detail, feature_table
from airflow_hops.ml.statistics.summary import feature_name, vector_width

MAX_CELLS = 2_000_000
"""Rows by columns of a file."""
MAX_BYTES = 32 << 20
"""Bytes of a file; texts count, too."""
MAX_TEXT = 200
"""Characters of a value."""
_MAX_WIDTH = 512

MAX_SLICES = 100
"""Maximum number of slices with figures; also limited by :data:`MAX_SLICE_FEATURES`."""
MAX_SLICE_FEATURES = 5_000
MAX_VALUES = 1_000
"""Maximum number of values of a feature of strings; also limited by :data:`MAX_ALL_VALUES`."""
MAX_ALL_VALUES = 50_000
_NUMPY = orjson.OPT_SERIALIZE_NUMPY


def write_page(folder: Path, statistics: object, sample: pa.Table | None = None, total_rows: int = 0) -> None:
    """Writes ``page.jsonl`` and, with a sample of rows, ``page_rows.bin``.

    Args:
        folder: Folder of a split, or of a side of a comparison; created if necessary.
        statistics: ``DatasetFeatureStatisticsList``: the whole data set first, then its slices.
        sample: Sampled rows in random order.
        total_rows: Rows that the sample was drawn from.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE_FILE).write_bytes(b"\n".join(_lines(statistics, sample)) + b"\n")
    if sample is not None:
        (folder / ROWS_FILE).write_bytes(encode_rows(sample, total_rows))


def _lines(statistics: Any, sample: pa.Table | None) -> Iterator[bytes]:
    whole, *slices = statistics.datasets
    slices.sort(key=lambda dataset: (-dataset.num_examples, dataset.name))
    shown = slices[: min(MAX_SLICES, MAX_SLICE_FEATURES // max(1, len(whole.features)))]
    datasets = [(whole, None), *((each, each.name) for each in shown)]
    views, blocks, line = [], list[list[bytes]](), 1
    for dataset, key in datasets:
        for weighted in (False, True) if dataset.weighted_num_examples else (False,):
            blocks.append(_view(dataset, weighted=weighted, sample=None if key else sample))
            views.append(PageView(line, key, weighted))
            line += len(blocks[-1])
    index = PageIndex(
        rows=int(whole.num_examples),
        features=[feature_name(feature) for feature in whole.features],
        weighted_rows=whole.weighted_num_examples or None,
        slices={each.name: int(each.num_examples) for each in shown},
        slices_left_out=len(slices) - len(shown),
        views=tuple(views),
    )
    yield orjson.dumps(index.to_dict())
    for block in blocks:
        yield from block


def _view(dataset: Any, *, weighted: bool, sample: pa.Table | None) -> list[bytes]:
    vectors = [name for each in dataset.features if vector_width(each) and (name := feature_name(each))]
    if sample is not None:
        sample = sample.select([name for name in vectors if name in sample.column_names])
    texts = sum(each.WhichOneof("stats") == "string_stats" for each in dataset.features)
    values = min(MAX_VALUES, max(1, MAX_ALL_VALUES // max(1, texts)))
    rows = int(dataset.num_examples)
    return [
        orjson.dumps(feature_table(dataset, weighted=weighted, sample=sample), option=_NUMPY),
        *(
            orjson.dumps(feature_detail(each, rows, weighted=weighted, sample=sample, values=values), option=_NUMPY)
            for each in dataset.features
        ),
    ]


def encode_rows(sample: pa.Table, total_rows: int) -> bytes:
    """Encodes the first rows of a sample, as many as the file may have; numbers keep all their digits.

    A vector of a fixed width is a column for each dimension, ``numeric[3]``.

    Args:
        sample: Rows in random order.
        total_rows: Rows that the sample was drawn from.
    """
    columns = list(_flat(sample))
    rows = min(sample.num_rows, max(1, MAX_CELLS // max(1, len(columns))))
    while True:
        parts = [_encode_column(name, array.slice(0, rows)) for name, array in columns]
        if sum(len(data) for _, *buffers in parts for data in buffers) <= MAX_BYTES or rows <= 1:
            return pack_rows(RowsHeader(rows, total_rows), parts)
        rows //= 2


def role_of(kind: pa.DataType) -> Role | None:
    """Returns the role of columns of a type; None if rows are not a number, time or string each, and cannot be sent."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "time"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)
    return "category" if is_text else None


def _flat(sample: pa.Table) -> Iterator[tuple[str, pa.Array]]:
    for name in sample.column_names:
        array = sample.column(name).combine_chunks()
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        lengths = pc.unique(pc.list_value_length(array).drop_null()).to_pylist() if is_list(array.type) else []
        if len(lengths) == 1 and 1 < lengths[0] <= _MAX_WIDTH and role_of(array.type.value_type):
            for item in range(lengths[0]):
                yield f"{name}[{item}]", pc.list_element(array, item)
        else:
            yield name, array


def _encode_column(name: str, array: pa.Array) -> tuple[RowsColumn, bytes, bytes]:
    """Returns a column without its place, its bytes and those of its words."""
    role = role_of(array.type)
    described = RowsColumn(name, str(array.type), role, nulls=array.null_count)
    if role is None:
        return described, b"", b""
    words: list[str] | None = None
    if role == "boolean":
        values: np.ndarray = pc.fill_null(array.cast(pa.int8()), -1).to_numpy(zero_copy_only=False)
    elif role == "time":
        # The unsafe cast cuts off fractions of a millisecond.
        values = _floats(array.cast(pa.timestamp("ms"), safe=False).cast(pa.int64()))
    elif role == "number":
        values = _number(array)
    else:
        values, words = _category(array)
    return replace(described, type=values.dtype.name), values.tobytes(), b"" if words is None else orjson.dumps(words)


def _number(array: pa.Array) -> Any:
    if pa.types.is_integer(array.type) and not array.null_count:
        values = array.to_numpy(zero_copy_only=False)
        for smaller in (np.int8, np.int16, np.int32):
            bounds = np.iinfo(smaller)
            if not len(values) or (values.min() >= bounds.min and values.max() <= bounds.max):
                return values.astype(smaller)
    values = _floats(array)
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return single if np.array_equal(single.astype(np.float64), values, equal_nan=True) else values


def _floats(array: pa.Array) -> Any:
    if pa.types.is_float16(array.type):  # PyArrow 10.0: cannot cast these
        return array.to_numpy(zero_copy_only=False).astype("<f8")
    return array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype("<f8")


def _category(array: pa.Array) -> tuple[np.ndarray, list[str]]:
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    words = encoded.dictionary.cast(pa.string()).to_pylist()
    codes = pc.fill_null(encoded.indices.cast(pa.int32()), -1).to_numpy(zero_copy_only=False)
    counts = np.bincount(codes[codes >= 0], minlength=len(words))
    by_count = [index for index in np.lexsort((np.arange(len(words)), -counts)) if counts[index]]
    rank: np.ndarray = np.full(len(words) + 1, -1, np.int32)
    rank[by_count] = np.arange(len(by_count), dtype=np.int32)
    smallest = next(kind for kind in (np.int8, np.int16, np.int32) if len(by_count) <= np.iinfo(kind).max)
    return rank[codes].astype(smallest), [(words[index] or "")[:MAX_TEXT] for index in by_count]
