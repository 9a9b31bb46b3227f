"""Captured rows of the model server: the window of a run, and the features in it.

The server writes Parquet files whose names sort by time and which are complete when they appear, one row for each row
that it answered, with columns ``input.<feature>`` and ``captured_at``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput, Producer
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.monitoring.captured.requests import RowsFile
from airflow_hops.ml.readers.raw_file import explained
from airflow_hops.ml.readers.types import CALENDAR_S
from airflow_hops.ml.readers.vectors import finite_vectors, is_list
from airflow_hops.ml.spark.tasks import IN_PROCESS, Pool, TaskSummary, run_tasks
from airflow_hops.ml.statistics.formats.layout import batch_rows, bounded

INPUT = "input."
_CELL_BYTES = 8
"""Approximate size of a decoded value."""
_RUNS_KEPT = 100
_DAY_S = 86_400


@dataclass(frozen=True)
class Window:
    """Files of a run: names after ``after``, up to and including ``until``; None for no limit."""

    after: str | None = None
    until: str | None = None

    def holds(self, name: str) -> bool:
        """Returns whether a file is in the window."""
        return (self.after is None or name > self.after) and (self.until is not None and name <= self.until)


class Cursor:
    """Position up to which captured rows have been compared; a file of the store.

    A run's window is fixed when the run first asks for it: a retry or rerun sees the same rows. The next run begins
    where the last one that was :meth:`done` ended. Each task has its own cursor, which names its models for the garbage
    collection (:mod:`airflow_hops.core.store.captured_retention`).
    """

    def __init__(self, store: ArtifactStore, producer: Producer, model_name: str) -> None:
        self._store, self._run_id, self._model = store, producer.run_id, model_name
        self._uri = store.uri("_state", producer.dag_id, producer.task, "captured.json")

    def window(self, names: Sequence[str]) -> Window:
        """Returns the window of this run, given the names of all captured files."""
        state = self._read()
        if self._run_id in state["runs"]:
            return Window(**state["runs"][self._run_id])
        newest = max(names, default=None)
        window = Window(after=state["until"], until=newest if newest is not None else state["until"])
        state["runs"] = dict([*state["runs"].items(), (self._run_id, asdict(window))][-_RUNS_KEPT:])
        state["models"] = sorted({*state["models"], self._model})
        self._write(state)
        return window

    def done(self, window: Window) -> None:
        """Moves the cursor behind a window whose artifact is committed."""
        state = self._read()
        if window.until is not None and (state["until"] is None or window.until > state["until"]):
            self._write({**state, "until": window.until})

    def _read(self) -> dict[str, Any]:
        try:
            state = self._store.read_json(self._uri)
            return {"until": state["until"], "runs": dict(state["runs"]), "models": state.get("models", [])}
        except FileNotFoundError:
            return {"until": None, "runs": {}, "models": []}
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"{self._uri}: not a cursor ({type(error).__name__}: {error}); delete it to look at all captured rows"
            ) from error

    def _write(self, state: Mapping[str, Any]) -> None:
        self._store.write_text(self._uri, json.dumps(state, indent=1))


@dataclass(frozen=True)
class CapturedSpan:
    """Number and times of captured rows.

    Attributes:
        versions: Rows by model version.
        captured_from: Time of the first capture, ISO 8601 UTC; None without rows.
        captured_until: Time of the last capture.
        captured_files: Names of the first and the last file; None without rows.
        window_end: End of the rows' own period by their time feature: the day after the latest, ISO 8601 UTC; None
            without rows or time feature.
        window_start: Start of that period: the day of the earliest.
        wrong_times: Rows left out of that period: their time feature is over a day after their own capture, or before
            the year 1.
        wrong_time: An example of such a time.
    """

    rows: int = 0
    versions: Mapping[str, int] | None = None
    captured_from: str | None = None
    captured_until: str | None = None
    captured_files: tuple[str, str] | None = None
    window_end: str | None = None
    window_start: str | None = None
    wrong_times: int = 0
    wrong_time: int | None = None

    def of_days(self, first: int, last: int) -> CapturedSpan:
        """Sets the days of the earliest and the latest of the rows' own times, seconds since the epoch."""
        end = _day(last) + timedelta(days=1)
        return replace(self, window_end=end.isoformat(), window_start=_day(first).isoformat())


def check_columns(files: Sequence[RowsFile], expected: Mapping[str, str], time_feature: str | None) -> None:
    """Compares the files' columns with the features that the model was trained on.

    Args:
        files: Captured files.
        expected: TFDV's type (INT, FLOAT, STRING) by name of the feature.
        time_feature: Feature that holds seconds since the epoch, or None.

    Raises:
        BadInput: a file cannot be read, or a feature is missing from it or is of another type.
    """
    import pyarrow.parquet as pq

    wanted = {**expected, **({time_feature: "INT"} if time_feature else {})}
    for file in files:
        with explained(str(file)), file.open() as stream:
            schema = pq.read_schema(stream)
        inputs = [name for name in schema.names if name.startswith(INPUT)]
        if not inputs:
            raise BadInput(f"{file}: no columns 'input.*'; the server must capture inputs (--capture_mode=all)")
        for name, kind in wanted.items():
            index = schema.get_field_index(f"{INPUT}{name}")
            if index < 0:
                why = (
                    "which time_feature names; a model that does not use it takes it where TransformOperator names it "
                    "in extra_inputs"
                    if name == time_feature and name not in expected
                    else "a feature that the model was trained on"
                )
                raise BadInput(f"{file}: there is no column 'input.{name}', {why}; found {', '.join(inputs)}")
            result = schema.field(index).type
            if _kind(result) != kind:
                raise BadInput(
                    f"{file}: column 'input.{name}' is {result}, but the model was trained on {kind} for {name!r}"
                )


@dataclass
class _FileSpan(TaskSummary):
    """Rows of a file, the first and last times of its batches, and times that cannot be."""

    versions: dict[str, int] = field(default_factory=dict)
    captured: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    wrong_times: int = 0
    wrong_time: int | None = None


def read_span(files: Sequence[RowsFile], time_feature: str | None, pool: Pool = IN_PROCESS) -> CapturedSpan:
    """Counts the rows by version, and finds the times that they span; ``pool`` runs the tasks that read the files."""
    spans = [span for span in run_tasks(pool, _span_of, time_feature, files, _FileSpan) if span.versions]
    if not spans:
        return CapturedSpan()
    versions = sum((Counter(span.versions) for span in spans), Counter[str]())
    moments = [datetime.fromisoformat(moment) for span in spans for moment in span.captured]
    result = CapturedSpan(
        rows=versions.total(),
        versions=dict(versions),
        captured_from=min(moments).isoformat(),
        captured_until=max(moments).isoformat(),
        captured_files=(files[0].name, files[-1].name),
        wrong_times=sum(span.wrong_times for span in spans),
        wrong_time=next((span.wrong_time for span in spans if span.wrong_time is not None), None),
    )
    known = [seconds for span in spans for seconds in span.times]
    return result.of_days(min(known), max(known)) if known else result


def _span_of(time_feature: str | None, file: RowsFile) -> str:
    import pyarrow.compute as pc

    span, versions = _FileSpan(), Counter[str]()
    columns = ["version", "captured_at", *([f"{INPUT}{time_feature}"] if time_feature else [])]
    with span.recording_errors(""):
        for batch in _batches(file, columns):
            for count in pc.value_counts(batch.column(0)).to_pylist():
                versions[str(count["values"])] += count["counts"]
            moments = pc.min_max(batch.column(1)).as_py().values()
            span.captured += [moment.isoformat() for moment in moments if moment is not None]
            if time_feature:
                seconds, refused = _plausible(batch.column(2), batch.column(1))
                span.times += [time for time in pc.min_max(seconds).as_py().values() if time is not None]
                if span.wrong_time is None and len(refused):
                    span.wrong_time = refused[0].as_py()
                span.wrong_times += len(refused)
    span.versions = dict(versions)
    return span.to_json()


def read_features(files: Sequence[RowsFile], features: Sequence[str], *, prefix: str = INPUT) -> Iterator[Any]:
    """Yields the features of captured rows as Arrow record batches.

    Servers do not know nulls: a missing number is NaN, and a missing string is empty. Both become null, as does a
    vector in which a number is NaN or infinite.

    Args:
        files: Captured files, or files of examples.
        features: Names of the features.
        prefix: Prefix of the columns' names.
    """
    import pyarrow as pa

    for file in files:
        for batch in _batches(file, [f"{prefix}{name}" for name in features]):
            yield pa.RecordBatch.from_arrays([with_nulls(column) for column in batch.columns], list(features))


def _batches(file: RowsFile, columns: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with explained(str(file)), file.open() as stream:
        opened = pa.ipc.open_stream(stream) if file.is_stream else pq.ParquetFile(stream)
        result = (opened.schema if file.is_stream else opened.schema_arrow).names
        if lacking := set(columns).difference(result):
            raise BadInput(f"{file}: there is no column {min(lacking)!r}; found {', '.join(result)}")
        rows = batch_rows(_CELL_BYTES * len(columns))
        batches = bounded(opened) if file.is_stream else opened.iter_batches(rows, columns=list(columns))
        for batch in batches:
            # The file's columns may be in another order.
            yield batch.from_arrays([batch.column(batch.schema.get_field_index(c)) for c in columns], list(columns))


def _kind(result: Any) -> str:
    import pyarrow as pa

    if pa.types.is_integer(result) or pa.types.is_boolean(result):
        return "INT"
    if pa.types.is_floating(result):
        return "FLOAT"
    if any(is_of(result) for is_of in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)):
        return "STRING"
    return "FLOAT" if _is_vectors(result) else str(result)


def _is_vectors(result: Any) -> bool:
    import pyarrow as pa

    return is_list(result) and bool(pa.types.is_floating(result.value_type))


def with_nulls(column: Any) -> Any:
    """Replaces the server's missing values of a column by null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if _kind(column.type) == "STRING":
        return pc.if_else(pc.equal(pc.binary_length(column), 0), pa.scalar(None, column.type), column)
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return finite_vectors(column) if _is_vectors(column.type) else column


def _plausible(seconds: Any, captured_at: Any) -> tuple[Any, Any]:
    """Returns the possible times, with null instead of the others, and the others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    seconds = seconds.cast(pa.int64(), safe=False)
    captured = captured_at.cast(pa.timestamp("s", "UTC"), safe=False).cast(pa.int64())
    wrong = pc.or_(pc.greater(seconds, pc.add(captured, _DAY_S)), pc.less(seconds, CALENDAR_S.start))
    return pc.if_else(wrong, pa.scalar(None, pa.int64()), seconds), pc.filter(seconds, wrong)


def _day(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
