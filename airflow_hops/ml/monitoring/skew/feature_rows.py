"""Features in files of rows, which this process or the executors of a cluster read."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.ml.monitoring.captured.requests import RowsFile
from airflow_hops.ml.monitoring.skew.captured_rows import INPUT, read_features
from airflow_hops.ml.monitoring.skew.rows.values import canonical
from airflow_hops.ml.readers.raw_file import explained
from airflow_hops.ml.spark.tasks import IN_PROCESS, Pool, TaskSummary, run_tasks
from airflow_hops.ml.statistics import comparable_options, generate_statistics
from airflow_hops.ml.statistics.formats.layout import Span
from airflow_hops.ml.statistics.generate import Engine
from airflow_hops.ml.statistics.row_keys import Keys, numbered_on, split_keys
from airflow_hops.ml.statistics.sources import Part, Plan


@dataclass(frozen=True)
class FeatureRows:
    """Rows of some files; call it with names of features for their record batches, in which a missing value is null.

    Attributes:
        files: Files of rows.
        prefix: Prefix of the columns' names.
        pool: Runs the tasks that read the files.
    """

    files: Sequence[RowsFile]
    prefix: str = INPUT
    pool: Pool = IN_PROCESS

    def __call__(self, features: Sequence[str]) -> Iterator[Any]:
        """Yields record batches of features."""
        return read_features(self.files, features, prefix=self.prefix)

    def statistics(self, features: Sequence[str]) -> Any:
        """Computes the statistics of features."""
        plan = _RowsPlan(
            name=f"{len(self.files)} files of rows",
            parts=tuple(Part(file.size_bytes, file.origin, Span(file.size_bytes)) for file in self.files),
            types=dict.fromkeys(features, pa.null()),
            files={file.origin: file for file in self.files},
            prefix=self.prefix,
        )
        engine: Engine = "local" if self.pool.runs_here else "spark"
        return generate_statistics(plan, options=comparable_options(), engine=engine, workers=1)

    def sample(self, features: Sequence[str], most: int, random: Any) -> pa.Table:
        """Draws an even sample of at most ``most`` rows, in random order and with the types of ``tf.Example``."""
        numbers, places, ends = np.zeros(0), np.zeros(0, np.int64), [0]
        for counted in run_tasks(self.pool, _count, None, self.files, _Read):
            # Keeps the rows that draw the lowest numbers of all.
            drawn = np.concatenate([numbers, random.random(counted.rows)])
            lowest = np.argsort(drawn, kind="stable")[:most]
            ends.append(ends[-1] + counted.rows)
            numbers, places = drawn[lowest], np.concatenate([places, np.arange(*ends[-2:])])[lowest]
        ascending = np.sort(places)
        cuts = np.searchsorted(ascending, ends)
        tasks = [
            (file, (ascending[first:last] - start).tolist())
            for file, start, first, last in zip(self.files, ends, cuts, cuts[1:], strict=False)
            if first < last
        ]
        taken = run_tasks(self.pool, _take, (list(features), self.prefix), tasks, _Read)
        tables = [pa.ipc.open_stream(base64.b64decode(each.content)).read_all() for each in taken]
        if not tables:
            return pa.table({name: pa.nulls(0) for name in features})
        return pa.concat_tables(tables, promote=True).take(pa.array(np.searchsorted(ascending, places)))


@dataclass(frozen=True, kw_only=True)
class _RowsPlan(Plan):
    files: Mapping[str, RowsFile]
    prefix: str

    def read_with_keys(self, part: Part) -> Iterator[tuple[pa.RecordBatch, Keys]]:
        number = list(self.files).index(part.file)
        batches = read_features([self.files[part.file]], list(self.types), prefix=self.prefix)
        return (split_keys(batch, number) for batch in numbered_on(batches))

    def dealt(self, processes: int) -> Sequence[Part]:
        return self.parts


@dataclass
class _Read(TaskSummary):
    """Number of a file's rows, or some of its rows as an Arrow stream in base64."""

    rows: int = 0
    content: str = ""


def _count(plan: None, file: RowsFile) -> str:
    summary = _Read()
    with summary.recording_errors(""), explained(file.origin), file.open() as stream:
        if file.is_stream:
            summary.rows = sum(batch.num_rows for batch in pa.ipc.open_stream(stream))
        else:
            summary.rows = pq.read_metadata(stream).num_rows
    return summary.to_json()


def _take(plan: tuple[list[str], str], task: tuple[RowsFile, list[int]]) -> str:
    (features, prefix), (file, places) = plan, task
    summary, sink, start = _Read(), pa.BufferOutputStream(), 0
    wanted, parts = np.array(places), []
    with summary.recording_errors(""):
        for batch in read_features([file], features, prefix=prefix):
            first, last = np.searchsorted(wanted, [start, start + batch.num_rows])
            rows = pa.Table.from_batches([canonical(batch, file.origin)])
            parts.append(rows.take(pa.array(wanted[first:last] - start)))
            start += batch.num_rows
        table = pa.concat_tables(parts)
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        summary.content = base64.b64encode(sink.getvalue()).decode()
    return summary.to_json()
