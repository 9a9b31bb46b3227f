"""Compares rows that the model server captured with the champion's training data."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.model_record import ServedVersion
from airflow_hops.core.contract.skew import SkewOptions, SkewReference
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.model_records import read_record
from airflow_hops.core.store.schema_history import schema_in_force
from airflow_hops.ml.monitoring.captured.requests import CapturedRequests, RowsFile
from airflow_hops.ml.monitoring.skew.captured_rows import (
    Cursor,
    check_columns,
    read_features,
    read_span,
)
from airflow_hops.ml.monitoring.skew.health import check_not_silent, clock_faults, time_faults, without_other_features
from airflow_hops.ml.monitoring.skew.report import Compared
from airflow_hops.ml.monitoring.skew.trained import Trained, compare_rows, files_of
from airflow_hops.ml.step.context import StepContext

if TYPE_CHECKING:
    from airflow_hops.ml.monitoring.skew.rows import RowSkewReport

log = logging.getLogger(__name__)


def compare_captured(context: StepContext, model_name: str, options: SkewOptions) -> Compared:
    """Compares the rows captured since the last run.

    The cursor only moves when there were enough rows for a verdict and the artifact is committed; too few rows wait for
    the next run.
    """
    requests = CapturedRequests.expected(context.spec.services, context.store, model_name)
    champion, trained = _read_trained(context.store, model_name, options.split)
    names = requests.names()
    cursor = Cursor(context.store, context.spec.producer)
    window = cursor.window(names)
    files = requests.fetch([name for name in names if window.holds(name)], context.scratch / "captured")
    files, notes = without_other_features(
        files, champion.version, lambda some: check_columns(some, trained.types, options.time_feature)
    )
    span = read_span(files, options.time_feature)
    faults: tuple[str, ...] = ()
    if span.rows < options.rows_needed:
        left_out = {name for name in names if window.holds(name)} - {file.name for file in files}
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
    log.info("%d captured rows in %d files, %s by version", span.rows, len(files), dict(span.versions or {}))
    unwell, wrong_times = (*faults, *clock_faults(span)), time_faults(span, options.time_feature)
    if wrong_times is not None:
        fault, is_unwell = wrong_times
        unwell, notes = ((*unwell, fault), notes) if is_unwell else (unwell, [*notes, fault])
    read = partial(read_features, files)
    compared = compare_rows(context.store, trained, span, read, options, unwell=unwell, notes=notes)
    if compared.current is None:
        return compared
    row_skew, notes = None, list(compared.notes)
    if options.identifiers:
        row_skew = _compare_rows(context, options, trained, files, notes)
    return replace(compared, row_skew=row_skew, notes=tuple(notes), done=lambda: cursor.done(window))


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
    context: StepContext, options: SkewOptions, trained: Trained, files: Sequence[RowsFile], notes: list[str]
) -> RowSkewReport | None:
    from airflow_hops.ml.monitoring.skew.rows import detect_row_skew

    names = list(dict.fromkeys([*options.identifiers, *trained.types]))
    if context.has_input("examples"):
        training = files_of(context.local("examples"), options.split)
    else:
        try:
            training = trained.files(context.store, options.split)
        except BadInput as error:
            notes.append(f"Rows were not compared: {error}")
            return None
    return detect_row_skew(
        lambda columns: read_features(training, columns or names, prefix=""),
        lambda columns: read_features(files, columns or names),
        identifiers=options.identifiers,
        float_rounding=options.float_rounding,
    )
