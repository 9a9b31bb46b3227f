"""Compares rows that the model server captured with the champion's training data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.capture_layout import rows_file_pattern
from airflow_hops.core.contract.model_record import ServedVersion
from airflow_hops.core.contract.skew import SkewOptions, SkewReference
from airflow_hops.core.contract.times import seconds_since
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.model_records import read_record
from airflow_hops.core.store.schema_history import schema_in_force
from airflow_hops.ml.monitoring.captured.requests import RowsFile
from airflow_hops.ml.monitoring.captured.server import check_not_silent, check_writes_files
from airflow_hops.ml.monitoring.captured.snapshot import captured_requests
from airflow_hops.ml.monitoring.skew.captured_rows import CapturedSpan, Cursor, Window, check_columns, read_span
from airflow_hops.ml.monitoring.skew.feature_rows import FeatureRows
from airflow_hops.ml.monitoring.skew.report import Compared
from airflow_hops.ml.monitoring.skew.trained import Trained, compare_rows, files_of
from airflow_hops.ml.spark.tasks import IN_PROCESS, Pool
from airflow_hops.ml.step.context import StepContext

if TYPE_CHECKING:
    from airflow_hops.ml.monitoring.skew.rows import RowSkewReport

log = logging.getLogger(__name__)

_CLOCKS_DIFFER = timedelta(minutes=10)
"""Largest expected difference of two machines' clocks."""
_WRONG_TIMES = 0.01
"""Share of rows with an impossible time above which the monitor is unwell; below it, only some clients are."""


def compare_captured(context: StepContext, model_name: str, options: SkewOptions, pool: Pool = IN_PROCESS) -> Compared:
    """Compares the rows captured since the last run, which tasks of ``pool`` read from a remote store.

    The cursor only moves when there were enough rows for a verdict and the artifact is committed; too few rows wait for
    the next run. With an input ``captured``, the rows are those of this snapshot, and there is no cursor.
    """
    in_snapshot = context.has_input("captured")
    check_writes_files(context)
    requests = captured_requests(context, model_name)
    champion, trained = _read_trained(context.store, model_name, options.split)
    names = requests.names()
    cursor = Cursor(context.store, context.spec.producer, model_name)
    window = Window(None, names[-1]) if in_snapshot else cursor.window(names)
    compared_names = [name for name in names if window.holds(name)]
    if not pool.runs_here and not requests.is_remote:
        log.info("The captured requests are read on this machine, which %s is on", requests)
        pool = IN_PROCESS
    if pool.runs_here:
        files = requests.fetch(compared_names, context.scratch / "captured")
    else:
        files = requests.files(compared_names)
    files, notes = without_other_features(
        files, champion.version, lambda some: check_columns(some, trained.types, options.time_feature)
    )
    span = read_span(files, options.time_feature, pool)
    if in_snapshot:
        span = replace(span, captured_files=None)
    faults: tuple[str, ...] = ()
    if span.rows < options.rows_needed:
        left_out = {*compared_names} - {file.name for file in files}
        seen = [name for name in names if name not in left_out]
        last = read_span(requests.fetch(seen[-1:], context.scratch / "newest"), None).captured_until if seen else None
        faults = check_not_silent(
            context.spec.services,
            str(options.model_name),
            last or champion.since,
            last is None,
            options,
            "".join(f"; {note}" for note in notes),
        )
        if in_snapshot:
            notes = [
                *notes,
                "Too few rows in the snapshot, which the next run does not compare again: ingest longer windows, or "
                "lower min_rows",
            ]
    log.info("%d captured rows in %d files, %s by version", span.rows, len(files), dict(span.versions or {}))
    unwell, wrong_times = (*faults, *clock_faults(span)), time_faults(span, options.time_feature)
    if wrong_times is not None:
        fault, is_unwell = wrong_times
        unwell, notes = ((*unwell, fault), notes) if is_unwell else (unwell, [*notes, fault])
    rows = FeatureRows(files, pool=pool)
    compared = compare_rows(context.store, trained, span, rows, options, unwell=unwell, notes=notes)
    if compared.current is None:
        return compared
    row_skew, notes = None, list(compared.notes)
    if options.identifiers:
        row_skew = _compare_rows(context, options, trained, rows, notes)
    compared = replace(compared, row_skew=row_skew, notes=tuple(notes))
    return compared if in_snapshot else replace(compared, done=lambda: cursor.done(window))


def _read_trained(store: ArtifactStore, name: str, split: str) -> tuple[ServedVersion, Trained]:
    champion = read_record(store, name).champion
    if champion is None or not champion.statistics or not champion.schema:
        raise BadInput(f"no champion of model {name!r} with statistics and schema; deploy one first")
    stored = store.manifest(champion.statistics).reference(champion.statistics)
    origin = SkewReference(
        statistics=stored.uri,
        fingerprint=stored.fingerprint,
        schema=champion.schema,
        model=name,
        version=champion.version,
    )
    schema = schema_in_force(store, champion.schema)
    return champion, Trained.read(store, champion.model, stored, schema, origin, split)


def _compare_rows(
    context: StepContext, options: SkewOptions, trained: Trained, rows: FeatureRows, notes: list[str]
) -> RowSkewReport | None:
    from airflow_hops.ml.monitoring.skew.rows import detect_row_skew

    names = list(dict.fromkeys([*options.identifiers, *trained.types]))
    if not rows.pool.runs_here:
        log.info("Rows with the same identifiers are compared on this machine, which reads all of them")
    if context.has_input("examples"):
        training = FeatureRows(files_of(context.local("examples"), options.split), "")
    else:
        try:
            training = trained.rows(context.store, options.split)
        except BadInput as error:
            notes.append(f"Rows were not compared: {error}")
            return None
    return detect_row_skew(
        lambda columns: training(columns or names),
        lambda columns: rows(columns or names),
        identifiers=options.identifiers,
        float_rounding=options.float_rounding,
    )


def clock_faults(span: CapturedSpan) -> tuple[str, ...]:
    """Returns in words the faults of captured requests' times."""
    if span.captured_until is None or -seconds_since(span.captured_until) <= _CLOCKS_DIFFER.total_seconds():
        return ()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return (
        f"requests were captured at {span.captured_until}, which is in the future (it is {now} here): the clock of "
        "the model server's machine or of this one is wrong",
    )


def time_faults(span: CapturedSpan, time_feature: str | None) -> tuple[str, bool] | None:
    """Describes rows with an impossible time of their own; true if they are too many to trust the others' period."""
    if not span.wrong_times:
        return None
    said = (
        f"{span.wrong_times:,} of {span.rows:,} captured rows have a {time_feature!r} that cannot be, such as "
        f"{span.wrong_time}, expected seconds since the epoch, at most a day after the request: they do not count in "
        "the compared period; correct the clients, or name a time_feature that is past when the model is asked"
    )
    return said, span.wrong_times > _WRONG_TIMES * span.rows


def without_other_features(
    files: Sequence[RowsFile], version: int, check: Callable[[Sequence[RowsFile]], Any]
) -> tuple[list[RowsFile], list[str]]:
    """Returns the files that have the champion's features, and notes on those left out.

    Requests that another version answered may have other features; those of the champion must have its own.

    Args:
        files: Captured files.
        version: The champion's version.
        check: Raises ``BadInput`` if files lack the champion's features.

    Raises:
        BadInput: a file of the champion lacks them.
    """
    own, left_out = list[RowsFile](), list[str]()
    for file in files:
        try:
            check([file])
            own.append(file)
        except BadInput as error:
            if fnmatchcase(file.name, rows_file_pattern(version)):
                raise
            left_out.append(str(error))
    if not left_out:
        return own, []
    return own, [
        f"{len(left_out)} of {len(files)} captured files were answered by other versions and left out, as they do not "
        f"have the features of version {version}; the first: {left_out[0]}"
    ]
