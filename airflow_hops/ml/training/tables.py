"""A split as one table, for frameworks that take all rows at once: Arrow, NumPy, pandas, PyTorch, XGBoost, LightGBM."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.target import REGRESSION, Target
from airflow_hops.core.errors import BadInput, SchemaMismatch
from airflow_hops.core.prepare.options import TRAIN
from airflow_hops.ml.features.feature_specs import OutputSpec
from airflow_hops.ml.features.raw_features import dense_arrays
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.rows_file import RowsFile
from airflow_hops.ml.readers.vectors import is_list
from airflow_hops.ml.training.reader.files import SplitFiles

Array = np.ndarray
_PROBED_ROWS = 64


@dataclass(frozen=True)
class SplitTable:
    """The rows of a split, or a rank's share of them; conversions share its memory if possible.

    Attributes:
        split: Name of the split.
        columns: The features as in the files.
        specs: Specifications of the features by name, in the order in which a model takes them.
        labels: ``[rows]``: class numbers, int64; in a regression, float64.
        weights: ``[rows]``, float64; None if rows have no weights.
        where: Source of the rows, for error messages.
        more_labels: Further labels by name, as ``labels``.

    Example:
        >>> import numpy as np, pyarrow as pa
        >>> from airflow_hops import SplitTable
        >>> columns = pa.table({"km": [733.0, 229.0]})
        >>> SplitTable("train", columns, {}, np.array([0, 1]), None, "train.parquet", {}).arrow().column_names
        ['km']
    """

    split: str
    columns: pa.Table
    specs: Mapping[str, OutputSpec]
    labels: Array
    weights: Array | None
    where: str
    more_labels: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> list[str]:
        """The columns of :meth:`matrix` and :meth:`frame`; a feature of several values has several columns."""
        return [
            name if spec.width is None else f"{name}_{number}"
            for name, spec in self.specs.items()
            for number in range(spec.width or 1)
        ]

    def arrow(self) -> pa.Table:
        """Returns the features as in the files."""
        return self.columns

    def arrays(self) -> dict[str, Array]:
        """Returns the features by name: ``[rows]`` or ``[rows, width]``; float32, int64, or strings as objects.

        As in serving, a missing number is NaN, and a missing string is empty.
        """
        return {name: self._array(name, spec) for name, spec in self.specs.items()}

    def frame(self) -> Any:
        """Returns the features as a ``pandas.DataFrame`` with the columns :attr:`names`.

        Raises:
            BadInput: two columns have the same name.
        """
        import pandas as pd

        names = self.names
        twice = next((name for name, number in Counter(names).items() if number > 1), None)
        if twice is not None:
            raise BadInput(
                f"{self.where}: a number of a vector and another feature are both called {twice!r}; rename one in "
                "prepare() or in the transform, leave one out (columns=…), or use matrix()"
            )
        parts = list(self.arrays().values())
        columns = [column for array in parts for column in (array.T if array.ndim == 2 else [array])]
        return pd.DataFrame(dict(zip(names, columns, strict=True)), copy=False)

    def matrix(self) -> Array:
        """Returns the features side by side, float32 of shape ``[rows, width]``.

        Raises:
            BadInput: a feature holds strings.
        """
        for name, spec in self.specs.items():
            if spec.dtype == "string":
                raise BadInput(
                    f"{self.where}: feature {name!r} holds strings, and a matrix holds numbers; use frame() with a "
                    "Pipeline that encodes it, leave it out (columns=…), or train on transformed examples"
                )
        result: Array = np.empty((len(self), len(self.names)), np.float32)
        first = 0
        for array in self.arrays().values():
            width = 1 if array.ndim == 1 else array.shape[1]
            result[:, first : first + width] = array.reshape(len(self), width)
            first += width
        return result

    def tensors(self) -> tuple[Any, Any]:
        """Returns :meth:`matrix` and the labels as ``torch`` tensors; labels are int64, or float32 in a regression."""
        import torch

        labels = self.labels if self.labels.dtype == np.int64 else self.labels.astype(np.float32)
        return torch.from_numpy(self.matrix()), torch.from_numpy(labels)

    def dmatrix(self) -> object:
        """Returns an ``xgboost.DMatrix`` with labels, weights and the features' names."""
        import xgboost

        return xgboost.DMatrix(
            self.matrix(), label=self.labels, weight=self.weights, feature_names=plain_names(self.names)
        )

    def dataset(self, reference: object = None) -> Any:
        """Returns a ``lightgbm.Dataset`` with labels, weights and the features' names.

        Args:
            reference: The dataset of the training rows, if these rows are for evaluation.
        """
        import lightgbm

        return lightgbm.Dataset(
            self.matrix(),
            label=self.labels,
            weight=self.weights,
            feature_name=plain_names(self.names),
            reference=reference,
            free_raw_data=False,
        )

    def _array(self, name: str, spec: OutputSpec) -> Array:
        dtype = "float32" if spec.dtype.startswith("float") else spec.dtype.replace("int32", "int64")
        if spec.width is not None:
            dtype = f"float32[{spec.width}]"
        result: Array = dense_arrays(self.columns, {name: dtype}, self.where)[name]
        return _as_text(result) if spec.dtype == "string" else result


def read_table(
    folder: str,
    split: str,
    target: Target,
    specs: Mapping[str, OutputSpec],
    *,
    rank: int = 0,
    size: int = 1,
    storage_options: Mapping[str, object] | None = None,
) -> SplitTable:
    """Reads the features, labels and weights of a share of a split's rows, in memory for the share alone.

    Labels and weights are checked in all rows; features are read only for the share.

    Args:
        folder: The split's folder: a local path, or any URI that fsspec opens.
        split: Name of the split.
        target: Label, problem, classes and weight of the model.
        specs: Specifications of the features to read.
        rank: Number of the share of the rows.
        size: Number of shares.
        storage_options: Options for fsspec.

    Raises:
        BadInput: a file cannot be read or lacks a column; a label is missing, not a number or not a class; a weight is
            not above 0; or the training split has no row of a class.
    """
    files = SplitFiles(folder, format="parquet", storage_options=storage_options)
    wanted, own = [*specs, *target.dtypes], list(target.dtypes)
    schema = scan.rows(files.fetched(0), wanted, 0, 0).schema

    def read(number: int, columns: Sequence[str], first: int, last: int) -> pa.Table:
        return _of_types(scan.rows(files.fetched(number), columns, first, last), schema, files.name(number))

    parts: list[pa.Table] = []
    for number in range(len(files)):
        read(number, wanted, 0, 0)  # every rank checks the columns of all files, before one fails for another's rows
        parts.append(read(number, own, 0, sys.maxsize))
    table = pa.concat_tables(parts)
    labels = {each.label: _labels(table, each, folder) for each in target.all}
    if split == TRAIN:
        for each in target.all:
            _check_classes(labels[each.label], each, folder)
    weights = _weights(table, target.weight, folder)
    first, last = (table.num_rows * number // size for number in (rank, rank + 1))
    # Copies, since a slice would keep the labels of all rows.
    mine = {name: values[first:last].copy() for name, values in labels.items()}
    weights = None if weights is None else weights[first:last].copy()
    ends = list(itertools.accumulate((part.num_rows for part in parts), initial=0))
    del table, parts, labels
    parts = [read(number, list(specs), first - start, last - start) for number, start in enumerate(ends[:-1])]
    share = pa.concat_tables(parts)
    return SplitTable(split, share, dict(specs), mine.pop(target.label), weights, folder, mine)


def _of_types(table: pa.Table, schema: pa.Schema, file: str) -> pa.Table:
    """Returns a file's columns, cast to the types of the first file."""
    columns, fields = [], [schema.field(name) for name in table.column_names]
    for field, column in zip(fields, table.columns, strict=True):
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise SchemaMismatch(file, field.name, column.type, field.type).with_text(
                f"{file}: column {field.name!r} is {column.type}, but {field.type} in the first file of the split; "
                f"cast it in prepare() ({error})"
            ) from None
    return pa.table(columns, schema=pa.schema(fields, schema.metadata))


def raw_specs(
    folder: str, others: Sequence[str | None], *, storage_options: Mapping[str, object] | None = None
) -> dict[str, OutputSpec]:
    """Returns the specifications of the raw features of a split, by name, from its first file.

    If all vectors of a feature are missing in the first file, its length comes from later files. ``others`` are the
    columns of label, key, time and weight.

    Raises:
        BadInput: the file cannot be read, or a column is neither a number, a string nor a vector of numbers.
    """
    files = SplitFiles(folder, format="parquet", storage_options=storage_options)
    features: list[pa.Field] = []
    widths: dict[str, int | None] = {}
    for number in range(len(files)):
        file = files.stored(number)
        schema = scan.schema(file)
        features = features or [field for field in schema if field.name not in others]
        unknown = [f for f in features if _has_vectors(f) and widths.get(f.name) is None]
        there = [field for field in schema if field.name in {f.name for f in unknown}]
        widths.update((field.name, _width(file, field)) for field in there)
        if all(widths.get(field.name) is not None for field in unknown):
            break
    return {
        field.name: _spec(field, widths.get(field.name), f"{files.name(0)}: column {field.name!r}")
        for field in features
    }


def _has_vectors(field: pa.Field) -> bool:
    return is_list(field.type) and bool(pa.types.is_floating(field.type.value_type))


def _width(file: RowsFile, field: pa.Field) -> int | None:
    """Returns the length of a column's first vector, or None if it has none."""
    if not _has_vectors(field):
        return None
    if pa.types.is_fixed_size_list(field.type):
        return int(field.type.list_size)
    for batch in scan.batches(file, [field.name], rows=_PROBED_ROWS):
        lengths = pc.list_value_length(batch.column(0)).drop_null()
        if len(lengths):
            return int(lengths[0].as_py())
    return None


def _spec(field: pa.Field, width: int | None, where: str) -> OutputSpec:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if width:
        return OutputSpec("float32", width, inputs=(field.name,))
    if _has_vectors(field):
        raise BadInput(f"{where} has only vectors that are missing or empty; leave it out in prepare()")
    for dtype, are in {
        "int64": (pa.types.is_integer, pa.types.is_boolean),
        "float32": (pa.types.is_floating,),
        "string": (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary),
    }.items():
        if any(is_of(kind) for is_of in are):
            return OutputSpec(dtype, inputs=(field.name,))
    raise BadInput(f"{where} is {field.type}; expected numbers, strings, or vectors of floats; cast it in prepare()")


def plain_names(names: Sequence[str]) -> list[str]:
    """Returns names that every library of boosted trees takes: unique, of letters, digits and ``_``."""
    results: list[str] = []
    for name in names:
        plain = re.sub(r"\W", "_", name)
        results.append(plain if plain not in results else f"{plain}_{len(results)}")
    return results


def _labels(table: pa.Table, target: Target, where: str) -> Array:
    result = _numbers(table.column(target.label), f"{where}: label {target.label!r}")
    bad = ~np.isfinite(result)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise BadInput(
            f"{where}: label {target.label!r} is {result[row]} in row {row}, and not a number in {int(bad.sum())} of "
            f"{len(result)} rows; leave them out in prepare()"
        )
    if target.problem == REGRESSION:
        return result
    classes = len(target.classes or ("0", "1"))
    wrong = result[(result < 0) | (result >= classes) | (result != np.floor(result))]
    if len(wrong):
        raise BadInput(
            f"{where}: label {target.label!r} is {wrong[0]:g} in a row, expected a class's number, 0 to {classes - 1}"
        )
    return result.astype(np.int64)


def _numbers(column: pa.ChunkedArray, what: str) -> Array:
    if column.null_count:
        raise BadInput(f"{what} is missing in {column.null_count} of {len(column)} rows")
    try:
        result: Array = column.combine_chunks().cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise BadInput(f"{what} is {column.type}, expected numbers ({error})") from None
    return result


def _check_classes(labels: Array, target: Target, where: str) -> None:
    if target.problem == REGRESSION:
        if len(labels) and labels.min() == labels.max():
            raise BadInput(f"{where}: label {target.label!r} is {labels[0]:g} in every row; there is nothing to learn")
        return
    names = target.classes or ("0", "1")
    missing = [name for number, name in enumerate(names) if number not in set(np.unique(labels).tolist())]
    if missing:
        raise BadInput(
            f"{where}: label {target.label!r} is {', '.join(map(repr, missing))} in no row; the model distinguishes "
            f"{', '.join(names)}, and needs rows of each: widen the window, or split differently"
        )


def _weights(table: pa.Table, name: str | None, where: str) -> Array | None:
    if name is None:
        return None
    result = _numbers(table.column(name), f"{where}: weight {name!r}")
    wrong = result[~((result > 0) & (result < math.inf))]
    if len(wrong):
        raise BadInput(f"{where}: weight {name!r} is {wrong[0]:g} in a row, expected a number above 0")
    return result


def _as_text(values: Array) -> Array:
    """Decodes bytes as strings, each distinct value once."""
    texts = {value: value.decode("utf-8", "replace") for value in set(values.tolist())}
    result: Array = np.array([texts[value] for value in values.tolist()], object)
    return result
