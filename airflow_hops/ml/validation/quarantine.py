"""Separates rows that violate the schema from valid ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.artifacts.artifact import RowCounts
from airflow_hops.core.errors import BadInput
from airflow_hops.core.parquet_writer import parquet_writer
from airflow_hops.ml.schema import TRAINING
from airflow_hops.ml.schema.anomalies import known_environment
from airflow_hops.ml.statistics.sources import SourcePlan, TypesDoNotFit, plan_source
from airflow_hops.ml.validation.row_rules import Broken, RowRules

REASONS = "anomaly_reasons"
"""Column of quarantined rows with the reasons."""
FILE = "part-00000.parquet"
_STAGING = ".part-00000.parquet"
_FILES = (FILE, _STAGING)


@dataclass
class RowSplit:
    """Separation of a source's rows into valid and invalid ones.

    Attributes:
        rows: Rows read.
        good: Number of valid rows.
        rejected: Quarantined rows by the first violated rule, ``"<feature> <kind>"``.
        by_feature: Quarantined rows by feature and kind of anomaly; a row counts once for each rule that it violates.
    """

    rows: int = 0
    good: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    by_feature: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def counts(self) -> RowCounts:
        """Row counts; valid and rejected rows add up to the rows read."""
        return RowCounts(self.rows, self.good, dict(self.rejected))


def split_anomalous(
    source: object, schema: object, good: str | Path, quarantine: str | Path, *, environment: str = TRAINING
) -> RowSplit:
    """Writes the rows that violate a schema to one folder, with the reasons, and all others to another.

    A row is checked like a single example in TFDV (``IdentifyAnomalousExamples``): a value outside its domain or
    bounds, NaN or infinity where they are not allowed, too few or too many values, a value of a type other than the
    schema's. Unlike in TFDV, a null is also a reason in a feature that every row must have (``min_fraction: 1``) or
    that has a fixed shape, and a column that is not in the schema is not a reason: so that the statistics of the good
    rows have none of these anomalies. The fields of a struct are not checked.

    The source is read batch by batch, so memory does not grow with the number of rows.

    Args:
        source: As in ``generate_statistics``.
        schema: ``Schema``.
        good: Folder for the good rows, one Parquet file with the columns of the source. The file of an earlier split
            is replaced once all rows are read; the folder must not contain other files.
        quarantine: Another folder, for the rows that violate the schema, whose column ``anomaly_reasons``
            (``list<string>``) has, for each violated rule, the feature, TFDV's kind of anomaly, the value, and what was
            expected. Not created if no row violates the schema.
        environment: One of the schema's environments; ignored if it has none.

    Raises:
        BadInput: the source cannot be read or has a column ``anomaly_reasons``, the environment is not the schema's,
            or a folder contains other files.
    """
    environment = known_environment(schema, environment)
    plan = plan_source(source)
    good, quarantine = Path(good).resolve(), Path(quarantine).resolve()
    # Only files of an earlier split may be overwritten, and no source files
    if good == quarantine:
        raise BadInput(f"{good}: the folder for good rows is also that for quarantined rows; expected two")
    for folder in (good, quarantine):
        strangers = sorted(p.name for p in folder.iterdir() if p.name not in _FILES) if folder.exists() else []
        if strangers:
            raise BadInput(f"{folder}: {strangers[0]!r} is in it; expected an empty folder for the rows")
    for part in plan.parts:
        if part.file and Path(part.file).resolve().parent in (good, quarantine):
            raise BadInput(f"{part.file}: to be read, and its folder is to be written to; expected another folder")
    while True:
        try:
            return _split(plan, schema, good, quarantine, environment)
        except TypesDoNotFit as misfit:
            try:
                plan = plan.widen(misfit)
            except TypesDoNotFit:
                raise BadInput(str(misfit)) from misfit


def _split(plan: SourcePlan, schema: object, good: Path, quarantine: Path, environment: str) -> RowSplit:
    if REASONS in plan.types:
        raise BadInput(
            f"{plan.name}: there is already a column {REASONS!r}, the name of the column for the reasons; rename it"
        )
    columns = pa.schema([(name, _written(kind)) for name, kind in plan.types.items()])
    rules = RowRules(schema, environment, plan.types)
    split = RowSplit()
    with (
        _Writer(good, columns, even_if_empty=True) as good_rows,
        _Writer(quarantine, columns.append(pa.field(REASONS, pa.list_(pa.string())))) as quarantined,
    ):
        for batch in _batches(plan, columns):
            broken = rules.check(batch)
            # Number of rules that each row violates (``[rows]``)
            counted: np.ndarray = np.zeros(batch.num_rows, np.int64)
            for one in broken:
                counted[one.rows] += 1
            bad = counted > 0
            _count(split, broken, bad)
            if not bad.any():
                good_rows.write(batch)
                continue
            good_rows.write(batch.filter(pa.array(~bad)))
            rejected = batch.filter(pa.array(bad))
            quarantined.write(
                pa.RecordBatch.from_arrays(
                    [*rejected.columns, _reasons(broken, counted[bad])], schema=quarantined.schema
                )
            )
    return split


def _batches(plan: SourcePlan, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields all batches with all columns, null if a file lacks them; raises TypesDoNotFit for new columns."""
    for part in plan.parts:
        for batch in plan.read(part):
            if new := {c.name: c.type for c in batch.schema if _is_new(c, plan.types.get(c.name))}:
                raise TypesDoNotFit(part.file or plan.name, new)
            arrays = []
            for column in columns:
                index = batch.schema.get_field_index(column.name)
                array = batch.column(index) if index >= 0 else pa.nulls(batch.num_rows, column.type)
                arrays.append(array if array.type == column.type else array.cast(column.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=columns)


def _written(kind: pa.DataType) -> pa.DataType:
    """Returns a column's type in the files: lists of a fixed size are read as lists."""
    return pa.list_(kind.value_field) if pa.types.is_fixed_size_list(kind) else kind


def _is_new(column: pa.Field, known: object) -> bool:
    return known is None or (pa.types.is_null(known) and not pa.types.is_null(column.type))


def _reasons(broken: list[Broken], counted: np.ndarray) -> pa.Array:
    """Returns a list of reasons for each invalid row, in the order of the schema's features."""
    order = np.argsort(np.concatenate([one.rows for one in broken]), kind="stable")
    reasons = pa.concat_arrays([one.reasons for one in broken]).take(pa.array(order))
    offsets = np.concatenate([[0], np.cumsum(counted)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), reasons)


def _count(split: RowSplit, broken: list[Broken], bad: np.ndarray) -> None:
    split.rows += len(bad)
    split.good += int(np.count_nonzero(~bad))
    fresh = bad.copy()
    for one in broken:
        kinds = split.by_feature.setdefault(one.feature, {})
        kinds[one.kind] = kinds.get(one.kind, 0) + len(one.rows)
        first = int(np.count_nonzero(fresh[one.rows]))
        fresh[one.rows] = False
        if first:
            name = f"{one.feature} {one.kind}"
            split.rejected[name] = split.rejected.get(name, 0) + first


class _Writer:
    """Writes one Parquet file to a folder, or none if there are no rows; on failure, the folder is unchanged."""

    def __init__(self, folder: Path, schema: pa.Schema, *, even_if_empty: bool = False) -> None:
        self.folder, self.schema = folder, schema
        self._even_if_empty = even_if_empty
        self._file: Any = None

    def __enter__(self) -> _Writer:
        if self._even_if_empty:
            self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        staging, file = self.folder / _STAGING, self.folder / FILE
        if self._file is not None:
            self._file.close()
            if kind is None:
                staging.replace(file)
        elif kind is None:
            file.unlink(missing_ok=True)
        staging.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it contains the rows, or does not exist
            self.folder.rmdir()

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._file is None:
            self._open()
        self._file.write_batch(batch)

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = parquet_writer(self.folder / _STAGING, self.schema)
