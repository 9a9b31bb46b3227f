"""Fetches the captured rows of a plan, and reports faults of them or of their server.

The server writes Parquet files whose names sort by time and which are complete when they appear, one row for each row
that it answered, with columns ``input.<feature>`` and ``captured_at``.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.artifact import Artifact, total_rows
from airflow_hops.core.artifacts.properties import ENDPOINT, ModelProperties, SnapshotProperties
from airflow_hops.core.capture_layout import rows_file_pattern
from airflow_hops.core.errors import ArtifactNotFound, BadInput, MissingColumn, SchemaMismatch
from airflow_hops.core.monitor_reports import listed_reports, read_report
from airflow_hops.core.skew import SkewOptions, SkewProperties
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.times import seconds_since
from airflow_hops.ml.distances.times import usual_period
from airflow_hops.ml.ingest.window import OUTSIDE_WINDOW
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.rows_file import RowsFile
from airflow_hops.ml.readers.types import CALENDAR_S
from airflow_hops.ml.readers.vectors import is_list
from airflow_hops.ml.skew.capturing_server import check_not_silent
from airflow_hops.ml.skew.feature_rows import INPUT, FeatureRows
from airflow_hops.ml.skew.plan import ComparisonPlan
from airflow_hops.ml.spark.pools import IN_PROCESS, Pool, WorkSummary, run_parts
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

_CLOCKS_DIFFER = timedelta(minutes=10)
"""Largest expected difference of two machines' clocks."""
_WRONG_TIMES = 0.01
"""Share of rows with an impossible time above which the monitor is unwell; below it, only some clients are."""
_DAY_S = 86_400
_SHOWN_REASONS = 5
_NUMBERS = {"INT", "FLOAT"}


@dataclass(frozen=True)
class CapturedSpan:
    """Number and times of captured rows.

    Attributes:
        versions: Rows by model version.
        captured_from: Time of the first capture, ISO 8601 UTC; None without rows.
        captured_until: Time of the last capture.
        captured_files: Names of the first and the last file; None without rows, or if they are of a snapshot.
        window_end: End of the rows' own period by their time feature: the day after the latest, ISO 8601 UTC; None
            without rows or time feature.
        window_start: Start of that period: the day of the earliest.
    """

    rows: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)
    captured_from: str | None = None
    captured_until: str | None = None
    captured_files: tuple[str, str] | None = None
    window_end: str | None = None
    window_start: str | None = None

    def of_days(self, first: int, last: int) -> CapturedSpan:
        """Sets the days of the earliest and the latest of the rows' own times, seconds since the epoch."""
        start, end = (datetime.fromtimestamp(seconds - seconds % _DAY_S, UTC) for seconds in (first, last + _DAY_S))
        return replace(self, window_end=end.isoformat(), window_start=start.isoformat())


@dataclass(frozen=True)
class Fetched:
    """Rows to compare.

    Attributes:
        rows: The rows, to be read as often as needed.
        span: Their number and times.
        notes: Descriptions of faults in some of them.
        unwell: Faults of the monitor itself, in words.
    """

    rows: FeatureRows
    span: CapturedSpan
    notes: tuple[str, ...] = ()
    unwell: tuple[str, ...] = ()


def fetch(context: StepContext, plan: ComparisonPlan, options: SkewOptions, pool: Pool = IN_PROCESS) -> Fetched:
    """Fetches the rows of a plan, which ``pool`` reads from a remote store.

    Files that other versions answered are left out if they lack the champion's features.

    Raises:
        BadInput: the champion's rows lack a feature of its training data; or the server captures nothing, or nothing
            for longer than ``silent_after_s``.
        HopsError: the store does not answer, or the server has not for longer than ``down_after_s``.
    """
    requests, window, version = plan.requests, plan.window.names, plan.champion.version
    in_snapshot = context.has_input("captured")
    if not pool.runs_here and not requests.is_remote:
        log.info("Reading the captured requests on this machine, since %s is a local folder", requests)
        pool = IN_PROCESS
    files = requests.fetch(window, context.scratch / "captured") if pool.runs_here else requests.files(window)
    own, left_out, notes, unwell = list[RowsFile](), dict[str, str](), list[str](), list[str]()
    for file in files:
        try:
            check_columns(file, plan.trained.types, options.time_feature)
            own.append(file)
        except BadInput as error:
            if fnmatchcase(file.name, rows_file_pattern(version)):
                raise
            left_out[file.name] = str(error)
    if left_out:
        notes.append(
            f"{len(left_out)} of {len(files)} captured files were answered by other versions and left out, as they do "
            f"not have the features of version {version}; the first: {next(iter(left_out.values()))}"
        )
    if in_snapshot:
        notes += _left_out_by_ingest(context.input("captured"))
    span, wrong_times, example = read_span(own, options.time_feature, pool)
    if span.rows < options.rows_needed:
        newest = [name for name in plan.names if name not in left_out][-1:]
        last = read_span(requests.fetch(newest, context.scratch / "newest"), None)[0].captured_until
        until = None
        if in_snapshot:
            last = last or _last_reported(context.store, str(options.model_name), version)
            bounds = SnapshotProperties.of(context.store.manifest(context.input("captured").uri)).window
            until = bounds[1] if bounds else None
        since, remarks = last or plan.champion.since, "".join(f"; {note}" for note in notes)
        is_adopted = ModelProperties.of(plan.trained.model).format == ENDPOINT  # the connection's server is another
        unwell += check_not_silent(
            {} if is_adopted else context.spec.services,
            str(options.model_name),
            since,
            last is None,
            options,
            remarks,
            is_ingested=in_snapshot,
            until=until,
        )
        if in_snapshot:
            notes.append(
                "Too few rows in the snapshot, which the next run does not compare again: ingest longer windows, or "
                "lower min_rows"
            )
    log.info("%d captured rows in %d files, %s by version", span.rows, len(own), dict(span.versions))
    if span.captured_until is not None and -seconds_since(span.captured_until) > _CLOCKS_DIFFER.total_seconds():
        now = datetime.now(UTC).isoformat(timespec="seconds")
        unwell.append(
            f"requests were captured at {span.captured_until}, which is in the future (it is {now} here): the clock of "
            "the model server's machine or of this one is wrong"
        )
    if wrong_times:
        (unwell if wrong_times > _WRONG_TIMES * span.rows else notes).append(
            f"{wrong_times:,} of {span.rows:,} captured rows have a {options.time_feature!r} that cannot be, such as "
            f"{example}, expected seconds since the epoch, near the others and at most a day after the request: they "
            "do not count in the compared period; correct the clients, or name a time_feature that is past when the "
            "model is asked"
        )
    span = replace(span, captured_files=None) if in_snapshot else span
    return Fetched(FeatureRows(own, pool=pool), span, tuple(notes), tuple(unwell))


def _left_out_by_ingest(snapshot: Artifact) -> list[str]:
    """Returns a note on the rows that a snapshot lacks, such as those of versions that were not deployed from here."""
    counts = total_rows(snapshot.rows, snapshot.properties)
    rejected = Counter(counts.rejected if counts else {})
    rejected.pop(OUTSIDE_WINDOW, None)  # other snapshots have them
    if not rejected:
        return []
    total, shown = rejected.total(), rejected.most_common(_SHOWN_REASONS)
    reasons = [f"{rows:,} {reason}" for reason, rows in shown]
    if more := total - sum(rows for _, rows in shown):
        reasons.append(f"{more:,} for other reasons")
    return [f"The ingest left out {total:,} row{'s' * (total > 1)}: {'; '.join(reasons)}"]


def _last_reported(store: ArtifactStore, model_name: str, version: int) -> str | None:
    """Returns the time of the last request in the newest report on a version that has any."""
    for _, name in listed_reports(store, model_name, version, "skew"):
        with contextlib.suppress(FileNotFoundError, ArtifactNotFound):  # of a run that was removed
            uri = read_report(store, model_name, version, "skew", name).uri
            if until := SkewProperties.of(store.manifest(uri)).captured_until:
                return until
    return None


def check_columns(file: RowsFile, expected: Mapping[str, str], time_feature: str | None) -> None:
    """Compares a file's columns with the features that the model was trained on, by TFDV's type (INT, FLOAT, STRING).

    Raises:
        BadInput: the file cannot be read, or lacks a feature or the ``time_feature``, or has it with another type.
    """
    schema = scan.schema(file)
    inputs = [name for name in schema.names if name.startswith(INPUT)]
    if not inputs:
        raise BadInput(f"{file}: no columns 'input.*'; the server must capture inputs (--capture_mode=all)")
    for name, kind in {**expected, **({time_feature: "INT"} if time_feature else {})}.items():
        index = schema.get_field_index(f"{INPUT}{name}")
        if index < 0:
            why = (
                "which time_feature names; a model that does not use it takes it where TransformOperator names it "
                "in extra_inputs"
                if name == time_feature and name not in expected
                else "a feature that the model was trained on"
            )
            raise MissingColumn(file, name).with_text(
                f"{file}: there is no column 'input.{name}', {why}; found {', '.join(inputs)}"
            )
        result = schema.field(index).type
        if not {_kind(result), kind} <= _NUMBERS and _kind(result) != kind:
            raise SchemaMismatch(file, name, result, kind).with_text(
                f"{file}: column 'input.{name}' is {result}, but the model was trained on {kind} for {name!r}"
            )


def _kind(result: Any) -> str:
    if pa.types.is_integer(result) or pa.types.is_boolean(result):
        return "INT"
    if pa.types.is_floating(result.value_type if is_list(result) else result):
        return "FLOAT"
    text = pa.types.is_string, pa.types.is_large_string, pa.types.is_binary
    return "STRING" if any(is_of(result) for is_of in text) else str(result)


@dataclass
class _FileSpan(WorkSummary):
    """Rows of a file, the first and last times of its batches, rows by their own day, and times that cannot be."""

    versions: dict[str, int] = field(default_factory=dict)
    captured: list[str] = field(default_factory=list)
    days: dict[str, int] = field(default_factory=dict)
    wrong_times: int = 0
    wrong_time: int | None = None


def read_span(
    files: Sequence[RowsFile], time_feature: str | None, pool: Pool = IN_PROCESS
) -> tuple[CapturedSpan, int, int | None]:
    """Counts the rows by version, and finds the times that they span; ``pool`` reads the files.

    Returns:
        The span; the number of rows left out of its period, because their time feature is over a day after their own
        capture, before the year 1, or far from all others; and an example of such a time.
    """
    spans = [span for span in run_parts(pool, _span_of, time_feature, files, _FileSpan) if span.versions]
    if not spans:
        return CapturedSpan(), 0, None
    versions = sum((Counter(span.versions) for span in spans), Counter[str]())
    moments = [datetime.fromisoformat(moment) for span in spans for moment in span.captured]
    ends = min(moments).isoformat(), max(moments).isoformat()
    result = CapturedSpan(versions.total(), dict(versions), *ends, (files[0].name, files[-1].name))
    examples = [span.wrong_time for span in spans if span.wrong_time is not None]
    wrong_times = sum(span.wrong_times for span in spans)
    if days := sum((Counter(span.days) for span in spans), Counter[str]()):
        rows = {int(day) * _DAY_S: days[day] for day in sorted(days, key=int)}
        first, last = usual_period(np.array([*rows], float), np.array([*rows.values()]), _DAY_S)
        result = result.of_days(int(first), int(last))
        far = [day for day in rows if not first <= day <= last]
        examples, wrong_times = examples + far, wrong_times + sum(rows[day] for day in far)
    return result, wrong_times, next(iter(examples), None)


def _span_of(time_feature: str | None, file: RowsFile) -> str:
    span, versions = _FileSpan(), Counter[str]()
    with span.recording_errors(""):
        for batch in file.batches(["version", "captured_at", *([f"{INPUT}{time_feature}"] if time_feature else [])]):
            for count in pc.value_counts(batch.column(0)).to_pylist():
                versions[str(count["values"])] += count["counts"]
            moments = pc.min_max(batch.column(1)).as_py().values()
            span.captured += [moment.isoformat() for moment in moments if moment is not None]
            if time_feature:
                seconds = batch.column(2).cast(pa.int64(), safe=False)
                captured = batch.column(1).cast(pa.timestamp("s", "UTC"), safe=False).cast(pa.int64())
                wrong = pc.or_(pc.greater(seconds, pc.add(captured, _DAY_S)), pc.less(seconds, CALENDAR_S.start))
                possible = pc.filter(seconds, pc.invert(wrong)).to_numpy(zero_copy_only=False)
                for day, rows in zip(*np.unique(possible // _DAY_S, return_counts=True), strict=True):
                    span.days[str(day)] = span.days.get(str(day), 0) + int(rows)
                refused = pc.filter(seconds, wrong)
                if span.wrong_time is None and len(refused):
                    span.wrong_time = refused[0].as_py()
                span.wrong_times += len(refused)
    span.versions = dict(versions)
    return span.to_json()
