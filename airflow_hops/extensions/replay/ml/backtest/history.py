"""Rows of a back-test's history, scored once by a candidate and stored by period in the format of captured requests."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ExamplesProperties
from airflow_hops.core.artifacts.target import REGRESSION
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.features.raw_features import check_columns, dense_arrays
from airflow_hops.ml.metrics.class_names import ClassNames
from airflow_hops.ml.metrics.metrics import Array
from airflow_hops.ml.metrics.scoring import ScoredModel, batch_rows
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.performance.join import Predictions
from airflow_hops.ml.performance.labels import as_time
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import File, OutputFolder, StoreFile, fetched
from airflow_hops.ml.readers.rows_file import RowsFile
from airflow_hops.ml.skew.feature_rows import FeatureRows
from airflow_hops.ml.spark.pools import Pool, StagedFiles, WorkSummary, run_parts, uploaded_files, use_one_thread

BEFORE, AFTER, UNTIMED = "before the periods", "after the periods", "no time"
UNLABELLED, UNKNOWN = "no label", "unknown class"
_ROWS = "rows"
"""Folder of the rows' times, labels and predictions, beside those of the periods."""
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class History:
    """Rows of a history after a candidate's training.

    Attributes:
        bounds: Start of the first period, then the end of each period; microseconds since the epoch, ``[periods + 1]``.
        rows: All rows of the periods with their predictions, ordered by time.
        files: Files of model inputs by period; none of a period without rows.
        counts: Rows outside the periods, and rows inside them whose label is unusable, by reason.
        pool: Reads them.
    """

    bounds: Array
    rows: Predictions
    files: tuple[tuple[RowsFile, ...], ...]
    counts: Mapping[str, int]
    pool: Pool

    def between(self, start_us: int, end_us: int) -> Predictions:
        """Returns the rows from a start to an end, which is excluded."""
        return self.rows.where(slice(*np.searchsorted(self.rows.time_us, [start_us, end_us])))

    def inputs(self, periods: Sequence[int]) -> FeatureRows:
        """Returns the model inputs of some periods."""
        return FeatureRows([file for period in periods for file in self.files[period]], "", self.pool)


@dataclass(frozen=True)
class ScoringPlan:
    """Plan that every part of :func:`score_history` gets.

    Attributes:
        model: The candidate.
        store: Store from which executors fetch the model.
        of: Properties of the history.
        names: Classes of the history and of the candidate.
        bounds: As in :class:`History`.
        folder: Folder to write to.
    """

    model: Artifact
    store: ArtifactStore
    of: ExamplesProperties
    names: ClassNames
    bounds: Array
    folder: OutputFolder


@dataclass
class ScoredFile(WorkSummary):
    """Rows of a file of the history that are left out, or whose label is unusable, by reason."""

    counts: dict[str, int] = field(default_factory=dict)


_loaded: dict[str, ScoredModel] = {}


def loaded_model(store: ArtifactStore, model: Artifact) -> ScoredModel:
    """Returns a model, which is loaded once in a process.

    Raises:
        BadInput: it does not load.
    """
    if model.fingerprint not in _loaded:
        _loaded.clear()
        _loaded[model.fingerprint] = ScoredModel(model_folder(store, model))
    return _loaded[model.fingerprint]


def score_history(pool: Pool, files: Sequence[File], plan: ScoringPlan) -> History:
    """Scores the rows that lie in a period and stores their inputs.

    Memory holds one batch, and the time, label and prediction of each row.

    Args:
        pool: Scores the files.
        files: Parquet files of the history, in any order of time.
        plan: Plan of the parts.

    Raises:
        BadInput: no row lies in a period, or the time or an input column of the candidate is missing or mistyped.
    """
    if plan.of.time is None:
        raise BadInput(
            "the history has no time column (time= of PrepareOperator), so it cannot be divided into periods"
        )
    summaries = run_parts(pool, score_file, plan, list(enumerate(files)), ScoredFile)
    counts, folder = Counter[str](), plan.folder
    for summary in summaries:
        counts.update(summary.counts)
    if folder.store is None:
        written = [RowsFile.at(path) for path in sorted(Path(folder.path).glob("*/part-*"))]
    else:
        entries = uploaded_files(summaries)
        written = [RowsFile.stored(StoreFile(folder.store, folder.path, entry)) for entry in entries]
    by_folder: dict[str, list[RowsFile]] = {}
    for file in written:
        by_folder.setdefault(file.path.split("/")[-2], []).append(file)
    parts = [_scored_rows(file) for file in by_folder.pop(_ROWS, [])]
    if not parts:
        words = ", ".join(f"{why}: {count}" for why, count in counts.items())
        raise BadInput(f"the history has no row in the periods ({words}): ticks and history must cover the same time")
    rows = _concatenated(parts)
    inputs = tuple(tuple(by_folder.get(str(period), ())) for period in range(len(plan.bounds) - 1))
    return History(plan.bounds, rows.where(np.argsort(rows.time_us, kind="stable")), inputs, counts, pool)


def score_file(plan: ScoringPlan, part: tuple[int, File]) -> str:
    """Scores a file; returns its :class:`ScoredFile` as JSON."""
    (number, file), properties = part, plan.of
    assert properties.time is not None
    label, periods = properties.label_column, len(plan.bounds) - 1
    counts, parts, summary = Counter[str](), list[Predictions](), ScoredFile()
    with summary.recording_errors(plan.folder.path):
        if plan.model.fingerprint not in _loaded:
            use_one_thread()
        served = loaded_model(plan.store, plan.model)
        regression = served.problem == REGRESSION
        check_columns(
            file, {properties.time: "int64", label: "float64" if regression else "int64"}, of="its properties"
        )
        check_columns(file, served.inputs, of="the candidate's signature")
        with fetched(file) as path, plan.folder.writing(summary.uploaded) as folder, StagedFiles() as staged:
            streams: dict[int, Any] = {}
            size = batch_rows(scan.schema(path), list(served.inputs))
            for batch in scan.batches(path, [*served.inputs, properties.time, label], rows=size):
                time_us = as_time(batch[properties.time], str(file)).cast(pa.int64()).fill_null(_NEVER).to_numpy()
                place = np.searchsorted(plan.bounds, time_us, "right") - 1
                inside, untimed = (place >= 0) & (place < periods), time_us == _NEVER
                counts.update({BEFORE: int((~untimed & (place < 0)).sum()), AFTER: int((place >= periods).sum())})
                counts.update({UNTIMED: int(untimed.sum())})
                if not inside.any():
                    continue
                batch = batch.filter(pa.array(inside))
                arrays = dense_arrays(batch, served.inputs, str(file))
                inputs, place = _as_batch(arrays), place[inside]
                for period in np.unique(place).tolist():
                    if period not in streams:
                        opening = partial(pa.ipc.new_stream, schema=inputs.schema)
                        streams[period] = staged.open(folder / str(period) / f"part-{number:05d}.arrow", opening)
                    streams[period].write_batch(inputs.filter(pa.array(place == period)))
                labels, unusable = labels_of(batch[label], plan.names, regression)
                counts.update(unusable)
                parts.append(Predictions(time_us[inside], served.predict(arrays), labels))
            if parts:
                (folder / _ROWS).mkdir(parents=True, exist_ok=True)
                rows = _concatenated(parts)
                target = folder / _ROWS / f"part-{number:05d}.npz"
                np.savez(target, time_us=rows.time_us, outputs=rows.outputs, labels=rows.labels)
    summary.counts = dict(counts)
    return summary.to_json()


def _concatenated(parts: Sequence[Predictions]) -> Predictions:
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in ("time_us", "outputs", "labels"))
    return Predictions(*columns)


def _scored_rows(file: RowsFile) -> Predictions:
    with file.open() as stream:
        return Predictions(**np.load(io.BytesIO(stream.read())))


def labels_of(column: Any, names: ClassNames, regression: bool) -> tuple[Array, dict[str, int]]:
    """Returns class numbers of the candidate, or values (NaN if unusable), and the unusable labels by reason."""
    labels = column.cast(pa.float64()).to_numpy(zero_copy_only=False).copy()
    missing = ~np.isfinite(labels)
    labels[missing] = np.nan
    if not regression:
        labels[~missing] = names.numbers(labels[~missing].astype(np.int64))
        labels[labels < 0] = np.nan
    return labels, {UNLABELLED: int(missing.sum()), UNKNOWN: int((np.isnan(labels) & ~missing).sum())}


def _as_batch(arrays: Mapping[str, Array]) -> pa.RecordBatch:
    """Returns model inputs with the types of the server's captured requests."""
    columns = []
    for values in arrays.values():
        if values.ndim == 1:
            columns.append(pa.array(values, pa.binary() if values.dtype == object else None))
        else:
            columns.append(pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1]))
    return pa.RecordBatch.from_arrays(columns, list(arrays))
