"""The columns of a fleet's rows, and their values as models get them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.properties import ExamplesProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.fleet.core.linear import CategoryEncoding, Encoding, NumberEncoding

HASH = "!hash"
"""Column of sorted rows with their hash."""
FOLDS = 5
_CATEGORIES = 50
"""Values of a category with a column of the matrix, the most frequent ones."""
_UNKNOWN = 0.05


@dataclass(frozen=True)
class Columns:
    """The columns of the examples that a fleet reads.

    Attributes:
        segment: The segment's key.
        label: Name of the label.
        weight: Name of the rows' weights, or None.
        types: Types of the features and of the key by name, in requests: ``int64``, ``float`` or ``string``.
        groups: Columns of groups of segments, which need not be features.
        schema: Schema of the rows in protobuf text; empty without one.
        classes: Number of classes; 0 for a regression.
    """

    segment: str
    label: str
    weight: str | None
    types: Mapping[str, str]
    groups: tuple[str, ...] = ()
    schema: str = ""
    classes: int = 0

    @property
    def features(self) -> list[str]:
        """Names of the features."""
        return [name for name in self.types if name != self.segment]

    @property
    def read(self) -> list[str]:
        """Names of all columns, each once."""
        return list(dict.fromkeys([*self.types, *self.groups, self.label, *([self.weight] if self.weight else [])]))


def columns_of(
    properties: ExamplesProperties,
    segment: str,
    names: Sequence[str] | None,
    groups: Sequence[str],
    rules: str,
    schema: pa.Schema,
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
    return Columns(segment, label, properties.weight, types, tuple(groups), rules)


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


def plain(table: pa.Table) -> pa.Table:
    """Returns columns as strings, integers and floats."""
    for number, field in enumerate(table.schema):
        if pa.types.is_boolean(field.type):
            table = table.set_column(number, field.name, table.column(number).cast(pa.int64()))
        elif pa.types.is_dictionary(field.type) or pa.types.is_large_string(field.type):
            table = table.set_column(number, field.name, table.column(number).cast(pa.string()))
    return table


def floats(column: pa.ChunkedArray) -> np.ndarray:
    """Returns numbers as they are, float64; NaN for a missing one."""
    values: np.ndarray = column.to_numpy().astype(np.float64)
    return values


def served_floats(column: pa.ChunkedArray) -> np.ndarray:
    """Returns numbers as the server gets them: float32, and integers exactly; NaN for a missing one."""
    values: np.ndarray = floats(column)
    return values if pa.types.is_integer(column.type) else values.astype(np.float32).astype(np.float64)


def ranked(column: pa.ChunkedArray) -> dict[str, int]:
    """Returns how many rows have each value, the most frequent first; not those without one."""
    counts = {str(each["values"]): each["counts"] for each in pc.value_counts(column.drop_null()).to_pylist()}
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def encoding_of(table: pa.Table, columns: Columns) -> Encoding:
    """Returns the matrix of the features, for the values of these rows."""
    numbers, categories = [], []
    for name in columns.features:
        if columns.types[name] == "string":
            categories.append(CategoryEncoding(name, tuple(ranked(table[name]))[:_CATEGORIES]))
            continue
        values = served_floats(table[name])
        present = values[~np.isnan(values)]
        mean, scale = (float(present.mean()), float(present.std())) if len(present) else (0.0, 0.0)
        is_constant = scale <= 1e-12 * max(1.0, abs(mean))
        numbers.append(NumberEncoding(name, mean, 1.0 if is_constant else scale, len(present) < len(values)))
    return Encoding(tuple(numbers), tuple(categories))


def still_fits(encoding: Encoding, table: pa.Table, columns: Columns) -> bool:
    """Returns whether an encoding that was made of other rows suits these.

    It does not if a number's mean has moved by a deviation or its deviation by a factor of two, or if a twentieth of
    the rows has a value, or a missing one, for which there is no column of the matrix but would be in a new encoding.
    """
    if {*encoding.columns} != {*columns.features}:
        return False
    made = encoding_of(table, columns)
    for old, new in zip(encoding.numbers, made.numbers, strict=True):
        is_moved = abs(new.mean - old.mean) > old.scale or not 0.5 <= new.scale / old.scale <= 2
        missing = np.isnan(served_floats(table[old.name])).mean() if not old.marks_missing else 0.0
        if is_moved or missing > _UNKNOWN:
            return False
    for known, category in zip(encoding.categories, made.categories, strict=True):
        counts = ranked(table[category.name])
        if sum(counts[value] for value in {*category.values} - {*known.values}) > _UNKNOWN * len(table):
            return False
    return True


@dataclass(frozen=True)
class TrainingRows:
    """Rows as a model takes them.

    Attributes:
        matrix: Encoded features, float64 ``[rows, width]``.
        labels: Class numbers or values, float64 ``[rows]``.
        weights: Weights, float64 ``[rows]``.
        hashes: Equal for copies of a row, ``[rows]``.
    """

    matrix: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    hashes: np.ndarray

    @property
    def folds(self) -> np.ndarray:
        """Number of the fifth of the rows that each is in, by its hash, ``[rows]``."""
        return (self.hashes % FOLDS).astype(int)

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, chosen: np.ndarray) -> TrainingRows:
        """Returns some of the rows, by a mask or their numbers."""
        return TrainingRows(self.matrix[chosen], self.labels[chosen], self.weights[chosen], self.hashes[chosen])


def training_rows(table: pa.Table, columns: Columns, encoding: Encoding) -> TrainingRows:
    """Encodes rows, whose labels and weights are numbers; rows of the weight 0 are left out."""
    if columns.weight is not None:
        table = table.filter(pc.greater(table[columns.weight], 0))
    weights = np.ones(len(table)) if columns.weight is None else floats(table[columns.weight])
    features = {
        name: table[name].combine_chunks() if columns.types[name] == "string" else served_floats(table[name])
        for name in columns.features
    }
    return TrainingRows(encoding.encode(features), floats(table[columns.label]), weights, table[HASH].to_numpy())


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
            values = (floats(column) + 0.0).view(np.uint64)
        hashes = (hashes ^ values) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    # Of SplitMix64, so that sums of hashes tell sets of rows apart, and their shares and remainders are uniform.
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * np.uint64(factor)
    hashes ^= hashes >> np.uint64(31)
    return hashes
