"""Rows of a back-test's history, scored once by a candidate and stored by period in the format of captured requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.properties import ExamplesProperties
from airflow_hops.core.contract.target import REGRESSION
from airflow_hops.ml.features.raw_features import check_columns, dense_arrays
from airflow_hops.ml.metrics.class_names import ClassNames
from airflow_hops.ml.metrics.metrics import Array
from airflow_hops.ml.metrics.scoring import ServedModel, batch_rows
from airflow_hops.ml.monitoring.skew.captured_rows import with_nulls
from airflow_hops.ml.stages.performance.labels import as_time
from airflow_hops.ml.stages.performance.versions import LabelledRows

BEFORE, AFTER, UNTIMED = "before the periods", "after the periods", "no time"
UNLABELLED, UNKNOWN = "no label", "unknown class"
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class History:
    """Rows of a history after a candidate's training.

    Attributes:
        bounds: Start of the first period, then the end of each period; microseconds since the epoch, ``[periods + 1]``.
        rows: All rows of the periods with their predictions, ordered by time.
        files: Model inputs, one file of Arrow streams per period; periods without rows have no file.
        counts: Rows outside the periods, and rows inside them whose label is unusable, by reason.
    """

    bounds: Array
    rows: LabelledRows
    files: tuple[Path, ...]
    counts: Mapping[str, int]

    def between(self, start_us: int, end_us: int) -> LabelledRows:
        """Returns the rows from a start to an end, which is excluded."""
        return self.rows.where(slice(*np.searchsorted(self.rows.time_us, [start_us, end_us])))

    def read(self, periods: Sequence[int], features: Sequence[str]) -> Iterator[Any]:
        """Reads features of some periods as record batches; missing values are null.

        Raises:
            BadInput: the candidate has no input of that name.
        """
        for path in (self.files[period] for period in periods if self.files[period].exists()):
            batches = []
            with pa.OSFile(str(path)) as file:
                while file.tell() < file.size():
                    batches += list(pa.ipc.open_stream(file))
            table = pa.Table.from_batches(batches)
            if lacking := [name for name in features if name not in table.column_names]:
                result = ", ".join(table.column_names)
                raise BadInput(
                    f"the candidate takes no feature {lacking[0]!r}, on which it was trained; it takes {result}"
                )
            yield from table.select(list(features)).combine_chunks().to_batches()


def read_history(
    paths: Sequence[Path], of: ExamplesProperties, served: ServedModel, names: ClassNames, bounds: Array, folder: Path
) -> History:
    """Scores the rows that lie in a period and stores their inputs.

    Memory holds one batch, and the time, label and prediction of each row.

    Args:
        paths: Parquet files of the history, in any order of time.
        of: Properties of the history, which name the time column.
        served: The candidate.
        names: Classes of the history and of the candidate.
        bounds: As in :class:`History`.
        folder: Empty folder for the periods' files.

    Raises:
        BadInput: no row lies in a period, or the time or an input column of the candidate is missing or mistyped.
    """
    if of.time is None:
        raise BadInput(
            "the history has no column of the time (time= of PrepareOperator): it cannot be cut into periods"
        )
    label, regression, periods = of.label_column, served.problem == REGRESSION, len(bounds) - 1
    counts, parts = Counter[str](), list[LabelledRows]()
    files = tuple(folder / f"{period}.arrow" for period in range(periods))
    for path in paths:
        check_columns(path, {of.time: "int64", label: "float64" if regression else "int64"}, of="its properties")
        check_columns(path, served.inputs, of="the candidate's signature")
        for batch in _batches(path, served, [*served.inputs, of.time, label]):
            time_us = as_time(batch[of.time], str(path)).cast(pa.int64()).fill_null(_NEVER).to_numpy()
            place = np.searchsorted(bounds, time_us, "right") - 1
            inside, untimed = (place >= 0) & (place < periods), time_us == _NEVER
            counts.update({BEFORE: int((~untimed & (place < 0)).sum()), AFTER: int((place >= periods).sum())})
            counts.update({UNTIMED: int(untimed.sum())})
            if not inside.any():
                continue
            batch = batch.filter(pa.array(inside))
            arrays = dense_arrays(batch, served.inputs, str(path))
            _keep(arrays, place[inside], files)
            labels, unusable = labels_of(batch[label], names, regression)
            counts.update(unusable)
            parts.append(LabelledRows(time_us[inside], served.predict(arrays), labels))
    if not parts:
        said = ", ".join(f"{why}: {count}" for why, count in counts.items())
        raise BadInput(f"the history has no row in the periods ({said}): ticks and history must be of the same time")
    joined = (np.concatenate([getattr(part, name) for part in parts]) for name in ("time_us", "outputs", "labels"))
    rows = LabelledRows(*joined)
    return History(bounds, rows.where(np.argsort(rows.time_us, kind="stable")), files, counts)


def labels_of(column: Any, names: ClassNames, regression: bool) -> tuple[Array, dict[str, int]]:
    """Returns class numbers of the candidate, or values (NaN if unusable), and the unusable labels by reason."""
    labels = column.cast(pa.float64()).to_numpy(zero_copy_only=False).copy()
    missing = ~np.isfinite(labels)
    labels[missing] = np.nan
    if not regression:
        labels[~missing] = names.numbers(labels[~missing].astype(np.int64))
        labels[labels < 0] = np.nan
    return labels, {UNLABELLED: int(missing.sum()), UNKNOWN: int((np.isnan(labels) & ~missing).sum())}


def _batches(path: Path, served: ServedModel, wanted: Sequence[str]) -> Iterator[Any]:
    with pq.ParquetFile(path) as file:
        size = batch_rows(file.schema_arrow, list(served.inputs))
        yield from (batch for batch in file.iter_batches(size, columns=list(dict.fromkeys(wanted))) if batch.num_rows)


def _keep(arrays: dict[str, Array], place: Array, files: Sequence[Path]) -> None:
    """Appends rows to the files of their periods, in the format of the server's captured requests."""
    columns = {}
    for name, values in arrays.items():
        if values.ndim == 1:
            column = pa.array(values, pa.binary() if values.dtype == object else None)
        else:
            column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
        columns[name] = with_nulls(column)
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    for period in np.unique(place):
        with files[period].open("ab") as file, pa.ipc.new_stream(file, batch.schema) as stream:
            stream.write_batch(batch.filter(pa.array(place == period)))
