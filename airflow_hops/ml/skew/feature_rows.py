"""Features in files of rows, which this process or the executors of a cluster read.

Servers do not know nulls: a missing number is NaN, and a missing string is empty. Both are read as null, as is a vector
in which a number is NaN or infinite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.ml.distances.sides import Side
from airflow_hops.ml.readers.rows_file import RowsFile
from airflow_hops.ml.readers.vectors import finite_vectors, is_list
from airflow_hops.ml.spark.pools import IN_PROCESS, Pool
from airflow_hops.ml.statistics import comparable_options
from airflow_hops.ml.statistics.formats.feature_types import Types
from airflow_hops.ml.statistics.formats.layout import Span, UnitShare
from airflow_hops.ml.statistics.generate import Collected, Engine, collect_statistics, sampling_options
from airflow_hops.ml.statistics.row_keys import numbered_on
from airflow_hops.ml.statistics.sources import SourcePlan, Units, keyed_units

INPUT = "input."
"""Prefix of a model input's column in captured rows."""
_FEATURES_AT_ONCE = 100
"""Features whose statistics are computed together: with more, batches have fewer rows, and each batch costs time."""


@dataclass(frozen=True)
class FeatureRows:
    """Rows of some files; call it with names of features for their record batches, in which a missing value is null.

    Attributes:
        files: Files of rows.
        prefix: Prefix of the columns' names.
        pool: Reads the files.
    """

    files: Sequence[RowsFile]
    prefix: str = INPUT
    pool: Pool = IN_PROCESS

    def __call__(self, features: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields record batches of features.

        Raises:
            BadInput: a file is damaged, or lacks a feature.
        """
        for file in self.files:
            yield from _read(file, features, self.prefix)

    def collect(self, features: Sequence[str]) -> Side:
        """Computes statistics, and draws a sample.

        Raises:
            BadInput: a file is damaged, or lacks a feature.
        """
        first, *others = self._collected(features, comparable_options())
        for part in others:
            first.statistics.datasets[0].features.extend(part.statistics.datasets[0].features)
        return Side(first.statistics, _joined(first, *others))

    def sample(self, features: Sequence[str]) -> pa.Table:
        """Draws the sample of :meth:`collect` alone."""
        return _joined(*self._collected(features, sampling_options()))

    def _collected(self, features: Sequence[str], options: object) -> Iterator[Collected]:
        """Reads the files for some features at a time, so that their number does not change the cost of each."""
        engine: Engine = "local" if self.pool.runs_here else "spark"
        for start in range(0, max(len(features), 1), _FEATURES_AT_ONCE):
            plan = SourcePlan(
                name=f"{len(self.files)} files of rows",
                parts=tuple(Span(file.size_bytes, file=file.origin) for file in self.files),
                types=dict.fromkeys(features[start : start + _FEATURES_AT_ONCE], pa.null()),
                units=partial(_units, {file.origin: file for file in self.files}, self.prefix),
            )
            yield collect_statistics(plan, options=options, engine=engine, processes=1)


def _joined(*parts: Collected) -> pa.Table:
    """Joins samples of the same rows in the same order; one of large values may be shorter."""
    columns = {name: part.sample[name] for part in parts for name in part.sample.column_names}
    rows = min(map(len, columns.values()), default=0)
    return pa.table({name: column.slice(0, rows) for name, column in columns.items()})


def _units(files: Mapping[str, RowsFile], prefix: str, types: Types, part: Span, share: UnitShare) -> Units:
    batches = _read(files[part.file], list(types), prefix)
    return keyed_units(numbered_on(batches), share, list(files).index(part.file))


def _read(file: RowsFile, features: Sequence[str], prefix: str) -> Iterator[pa.RecordBatch]:
    for batch in file.batches([f"{prefix}{name}" for name in features]):
        yield pa.RecordBatch.from_arrays([_with_nulls(column) for column in batch.columns], list(features))


def _with_nulls(column: pa.Array) -> pa.Array:
    """Replaces the server's missing values of a column by null."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return pc.if_else(pc.equal(pc.binary_length(column), 0), pa.scalar(None, kind), column)
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
    return finite_vectors(column) if is_list(kind) and pa.types.is_floating(kind.value_type) else column
