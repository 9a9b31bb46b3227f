"""Rows of examples by segment, in bounded memory: surveyed, sorted by segment into files, and read by segment.

Two passes read the examples in chunks of row groups, each a part of the pool's work: the first counts keys and values,
the second sorts each chunk by segment into an Arrow file. The rows of some segments are then slices of these files.
Chunks and the order of rows depend on the examples alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.properties import ExamplesProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.prepare.options import TRAIN
from airflow_hops.extensions.fleet.core.linear import CategoryEncoding, Encoding, NumberEncoding
from airflow_hops.ml.readers import scan
from airflow_hops.ml.spark.pools import Pool

_CHUNK_ROWS = 250_000
_PART_ROWS = 40_000
_CATEGORIES = 50
"""Values of a category with a column of the matrix, the most frequent ones."""
_COUNTED = 1000
"""Values of a category that the survey of a chunk returns."""
_SEGMENT = "!segment"
"""Column of sorted files with the number of the row's segment."""

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Columns:
    """The columns of the examples that a fleet reads.

    Attributes:
        segment: The segment's key.
        label: Name of the label.
        weight: Name of the rows' weights, or None.
        types: Types of the features and of the key by name, in requests: ``int64``, ``float`` or ``string``.
        groups: Columns of groups of segments, which need not be features.
    """

    segment: str
    label: str
    weight: str | None
    types: Mapping[str, str]
    groups: tuple[str, ...] = ()

    @property
    def features(self) -> list[str]:
        """Names of the features."""
        return [name for name in self.types if name != self.segment]

    @property
    def read(self) -> list[str]:
        """Names of all columns, each once."""
        return list(dict.fromkeys([*self.types, *self.groups, self.label, *([self.weight] if self.weight else [])]))


def columns_of(
    properties: ExamplesProperties, schema: pa.Schema, segment: str, names: Sequence[str] | None, groups: Sequence[str]
) -> Columns:
    """Returns the columns of a fleet; features are all but label, key, time and weight, unless ``names`` lists them.

    Raises:
        BadInput: a column does not exist, or has a type that a fleet does not take; the message names it.
    """
    if properties.more_labels:
        raise BadInput(f"the examples have the labels {', '.join(properties.more_labels)}; a fleet predicts one label")
    label = properties.label_column
    own = {label, properties.key, properties.time, properties.weight, *groups}
    features = [name for name in schema.names if name not in own] if names is None else list(names)
    if not (features := [name for name in features if name != segment]):
        raise BadInput("there is no feature; expected columns of the examples besides the segment and the label")
    for name in (segment, *features, *groups):
        if name not in schema.names:
            raise BadInput(f"there is no column {name!r} in the examples; they have {', '.join(schema.names)}")
    if label in features:
        raise BadInput(f"columns has {label!r}, which is the label")
    if segment in (label, properties.weight, *groups):
        kind = "among the groups" if segment in groups else "the label" if segment == label else "the rows' weight"
        raise BadInput(f"segment is {segment!r}, which is {kind}; expected a column of its own")
    types = {name: _kind(schema.field(name), name == segment) for name in (segment, *features)}
    return Columns(segment, label, properties.weight, types, tuple(groups))


def _kind(field: pa.Field, is_key: bool) -> str:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_integer(kind) or (pa.types.is_boolean(kind) and not is_key):
        return "int64"
    if pa.types.is_floating(kind) and not is_key:
        return "float"
    expected = "string or int64, as keys of segments" if is_key else "a number or a string; leave it out (columns=…)"
    raise BadInput(f"column {field.name!r} is of the type {field.type}; expected {expected}")


@dataclass(frozen=True)
class Chunk:
    """Row groups of a file of examples; ``name`` is that of the sorted file."""

    split: str
    file: Path
    row_groups: tuple[int, ...]
    rows: int
    name: str

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Reads columns, as strings, integers and floats."""
        batches = list(scan.batches(self.file, columns, row_groups=self.row_groups))
        table = pa.Table.from_batches(batches)
        for number, each in enumerate(table.schema):
            if (
                pa.types.is_dictionary(each.type)
                or pa.types.is_boolean(each.type)
                or pa.types.is_large_string(each.type)
            ):
                target = pa.int64() if pa.types.is_boolean(each.type) else pa.string()
                table = table.set_column(number, each.name, table.column(number).cast(target))
        return table


def chunks_of(splits: Mapping[str, Sequence[Path]]) -> list[Chunk]:
    """Divides the files of splits into chunks."""
    chunks: list[Chunk] = []
    for split, files in splits.items():
        for file in files:
            for groups, rows in scan.parts(scan.footer(file), _CHUNK_ROWS):
                chunks.append(Chunk(split, file, groups, rows, f"{len(chunks):05}"))
    return chunks


def _keys(table: pa.Table, name: str) -> pa.ChunkedArray:
    return table[name].cast(pa.string())


@dataclass
class Survey:
    """Survey of rows: their segments, and values of features.

    Attributes:
        keys: Training rows by segment.
        nulls: Rows of all splits without a key.
        numbers: Count, mean and sum of squared differences from it, by numeric feature.
        missing: Missing values by feature.
        values: Rows by value, by feature of strings.
    """

    keys: Counter[str] = field(default_factory=Counter)
    nulls: int = 0
    numbers: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    missing: Counter[str] = field(default_factory=Counter)
    values: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, other: Survey) -> None:
        """Adds the survey of other rows."""
        self.keys += other.keys
        self.nulls += other.nulls
        self.missing += other.missing
        for name, (n, mean, squares) in other.numbers.items():
            m, own, mine = self.numbers.get(name, (0, 0.0, 0.0))
            if total := n + m:
                joined = mine + squares + (mean - own) ** 2 * n * m / total
                self.numbers[name] = (total, own + (mean - own) * n / total, joined)
        for name, counts in other.values.items():
            self.values[name] = self.values.get(name, Counter()) + counts

    def encoding(self, columns: Columns) -> Encoding:
        """Returns the matrix of the features."""
        numbers, categories = [], []
        for name in columns.features:
            if columns.types[name] == "string":
                counts = sorted(self.values.get(name, Counter()).items(), key=lambda item: (-item[1], item[0]))
                categories.append(CategoryEncoding(name, tuple(value for value, _ in counts[:_CATEGORIES])))
            else:
                rows, mean, squares = self.numbers.get(name, (0, 0.0, 0.0))
                scale = float(np.sqrt(squares / rows)) if rows else 0.0
                is_constant = not np.isfinite(scale) or scale <= 1e-12 * max(1.0, abs(mean))
                # Rounded, since sums depend on the order of rows in their last bits.
                mean, scale = (float(f"{value:.9g}") for value in (mean, 1.0 if is_constant else scale))
                numbers.append(NumberEncoding(name, mean, scale, self.missing[name] > 0))
        return Encoding(tuple(numbers), tuple(categories))


def survey_chunk(columns: Columns, chunk: Chunk) -> Survey:
    """Surveys a chunk; of other splits than ``train`` only the keys that are null."""
    survey = Survey()
    is_train = chunk.split == TRAIN
    table = chunk.table(list(columns.types) if is_train else [columns.segment])
    keys = _keys(table, columns.segment)
    survey.nulls = keys.null_count
    if not is_train:
        return survey
    for each in pc.value_counts(keys.drop_null()).to_pylist():
        survey.keys[each["values"]] += each["counts"]
    for name in columns.features:
        column = table[name]
        if columns.types[name] == "string":
            counts = Counter(
                {each["values"]: each["counts"] for each in pc.value_counts(column.drop_null()).to_pylist()}
            )
            frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_COUNTED]
            survey.values[name] = Counter(dict(frequent))
            continue
        values = served_floats(column)
        if np.isinf(values).any():
            raise BadInput(
                f"column {name!r} is infinite in a row of {chunk.file.name}; expected finite numbers, or null"
            )
        present = values[~np.isnan(values)]
        survey.missing[name] += len(values) - len(present)
        if len(present):
            mean = float(present.mean())
            survey.numbers[name] = (len(present), mean, float(np.square(present - mean).sum()))
    return survey


def served_floats(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Returns numbers as the server gets them: float32, and integers exactly; NaN for a missing one."""
    values = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    floats: np.ndarray = values.astype(np.float32) if values.dtype.kind == "f" else values
    return floats.astype(np.float64)


def survey(pool: Pool, chunks: Sequence[Chunk], columns: Columns, progress: Progress) -> Survey:
    """Surveys all chunks."""
    total = Survey()
    report = lambda done: progress(0.1 * done / len(chunks), f"{done} of {len(chunks)} chunks surveyed")  # noqa: E731
    for each in pool.run(partial(survey_chunk, columns), chunks, report):
        total.add(each)
    return total


@dataclass(frozen=True)
class SortedRows:
    """Rows sorted by segment, in a file for each chunk.

    Attributes:
        folder: Folder of the files.
        chunks: The chunks, in order.
        columns: Columns of the rows.
        segments: Keys of the segments, sorted by UTF-8; a segment's number is its position.
    """

    folder: Path
    chunks: tuple[Chunk, ...]
    columns: Columns
    segments: tuple[str, ...]

    def read(self, first: int, end: int, splits: Sequence[str]) -> dict[int, pa.Table]:
        """Returns the rows of segments from ``first`` to ``end`` (exclusive) in some splits, by their number.

        The order of a segment's rows depends only on their values: files that are written in another order change
        neither its fingerprint nor its model.
        """
        tables = []
        for chunk in self.chunks:
            if chunk.split in splits:
                starts = np.load(self.folder / f"{chunk.name}.npy", mmap_mode="r")
                if starts[end] > starts[first]:
                    with pa.memory_map(str(self.folder / f"{chunk.name}.arrow")) as source:
                        table = pa.ipc.open_file(source).read_all()
                    tables.append(table.slice(starts[first], starts[end] - starts[first]))
        if not tables:
            return {}
        rows = pa.concat_tables(tables)
        numbers = rows[_SEGMENT].to_numpy()
        rows = rows.drop([_SEGMENT])
        order = np.lexsort((row_hashes(rows), numbers))
        rows = rows.take(pa.array(order)).combine_chunks()
        bounds = np.searchsorted(numbers[order], np.arange(first, end + 1))
        return {
            first + number: rows.slice(start, stop - start)
            for number, (start, stop) in enumerate(pairwise(bounds))
            if stop > start
        }


def row_hashes(table: pa.Table) -> np.ndarray:
    """Returns a number for each row that depends on its values alone, uint64 ``[rows]``."""
    hashes: np.ndarray = np.zeros(len(table), np.uint64)
    for column in table.columns:
        if pa.types.is_string(column.type):
            coded = column.combine_chunks().dictionary_encode()
            digests = [
                hashlib.blake2b(str(text).encode(), digest_size=8).digest() for text in coded.dictionary.to_pylist()
            ]
            known = np.array([int.from_bytes(digest, "little") for digest in digests] + [1], np.uint64)
            values = known[pc.fill_null(coded.indices, len(digests)).to_numpy()]
        else:
            values = (float64_values(column) + 0.0).view(np.uint64)
        hashes = (hashes ^ values) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    return hashes


def sort_chunk(rows: SortedRows, chunk: Chunk) -> int:
    """Writes a chunk's rows sorted by segment; returns their number, without those of no known segment."""
    table = chunk.table(rows.columns.read)
    keys = pa.array(rows.segments, pa.string())
    numbers = pc.index_in(_keys(table, rows.columns.segment), keys)
    numbers = pc.fill_null(numbers, len(keys)).to_numpy().astype(np.int32)
    order = np.argsort(numbers, kind="stable")
    starts = np.searchsorted(numbers[order], np.arange(len(keys) + 1))
    order = order[: starts[-1]]
    table = table.append_column(_SEGMENT, pa.array(numbers)).drop([rows.columns.segment]).take(pa.array(order))
    np.save(rows.folder / f"{chunk.name}.npy", starts)
    with pa.ipc.new_file(str(rows.folder / f"{chunk.name}.arrow"), table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return len(order)


def sort_rows(
    pool: Pool, folder: Path, chunks: Sequence[Chunk], columns: Columns, segments: Sequence[str], progress: Progress
) -> tuple[SortedRows, Counter[str]]:
    """Sorts all chunks; returns them and the number of sorted rows by split."""
    folder.mkdir()
    rows = SortedRows(folder, tuple(chunks), columns, tuple(segments))
    report = lambda done: progress(0.1 + 0.1 * done / len(chunks), f"{done} of {len(chunks)} chunks sorted")  # noqa: E731
    counts: Counter[str] = Counter()
    for chunk, count in zip(chunks, pool.run(partial(sort_chunk, rows), chunks, report), strict=True):
        counts[chunk.split] += count
    return rows, counts


def parts_of(rows_by_segment: Sequence[int]) -> list[tuple[int, int]]:
    """Divides segments into ranges of about 40,000 training rows.

    >>> parts_of([30_000, 20_000, 5, 5])
    [(0, 2), (2, 4)]
    """
    parts, first, rows = [], 0, 0
    for number, count in enumerate(rows_by_segment, 1):
        rows += count
        if rows >= _PART_ROWS or number == len(rows_by_segment):
            parts.append((first, number))
            first, rows = number, 0
    return parts


def float64_values(column: pa.ChunkedArray) -> np.ndarray:
    """Returns numbers as they are, float64; NaN for a missing one."""
    values: np.ndarray = column.to_numpy().astype(np.float64)
    return values
