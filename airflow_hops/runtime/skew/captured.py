"""Compares the rows that the model server captured with the data that the champion was trained on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_hops.contract.artifacts import Artifact, BadInput, RowCounts
from airflow_hops.contract.model_record import ServedVersion
from airflow_hops.contract.properties import ModelProperties
from airflow_hops.contract.skew import DRIFT, INSUFFICIENT, PIPELINE_FAULT, SkewOptions, SkewReference
from airflow_hops.runtime.captured.requests import CapturedRequests, RowsFile
from airflow_hops.runtime.feature_statistics import (
    STATISTICS_FILE,
    comparable_options,
    generate_statistics,
    load_statistics,
)
from airflow_hops.runtime.feature_statistics.summary import features_by_name, type_name
from airflow_hops.runtime.loaded_models import model_folder
from airflow_hops.runtime.schema import SCHEMA_FILE, load_schema
from airflow_hops.runtime.skew.captured_rows import (
    Cursor,
    check_columns,
    read_features,
    read_span,
)
from airflow_hops.runtime.skew.compared import Compared
from airflow_hops.runtime.skew.detect import compare_statistics
from airflow_hops.runtime.skew.health import check_not_silent, clock_faults, time_faults, without_other_features
from airflow_hops.runtime.skew.report import SkewReport
from airflow_hops.runtime.step.context import StepContext
from airflow_hops.schema_history import schema_in_force
from airflow_hops.store.model_records import read_record

if TYPE_CHECKING:
    from airflow_hops.runtime.skew.attribution import Attribution
    from airflow_hops.runtime.skew.rows import RowSkewReport

log = logging.getLogger(__name__)
_OF_TIMES_ALONE = {"rows", "wrong_times", "wrong_time"}


@dataclass(frozen=True)
class _Trained:
    """What the champion was trained on."""

    champion: ServedVersion
    statistics: Any
    schema: Any
    stored: Artifact
    types: Mapping[str, str]


def compare_captured(context: StepContext, model_name: str, options: SkewOptions) -> Compared:
    """Compares what was captured since last time.

    The cursor moves only once there were enough rows for a verdict, and the artifact is committed: too few rows wait
    for the next run.

    Args:
        context: The step's context.
        model_name: The served model.
        options: How it is compared.
    """
    requests = CapturedRequests.expected(context.spec.services, context.store, model_name)
    trained = _read_trained(context, model_name, options.split)
    names = requests.names()
    cursor = Cursor(context.store, context.spec.producer)
    window = cursor.window(names)
    files = requests.fetch([name for name in names if window.holds(name)], context.scratch / "captured")
    files, notes = without_other_features(
        files, trained.champion.version, lambda some: check_columns(some, trained.types, options.time_feature)
    )
    span = read_span(files, options.time_feature)
    if not span.rows:
        left_out = {name for name in names if window.holds(name)} - {file.name for file in files}
        seen = [name for name in names if name not in left_out]
        _check_not_silent(context, requests, seen, trained.champion, options, notes)
    log.info("%d captured rows in %d files, %s by version", span.rows, len(files), dict(span.versions or {}))
    origin = SkewReference(
        statistics=trained.stored.uri,
        fingerprint=trained.stored.fingerprint,
        schema=trained.champion.schema,
        model=model_name,
        version=trained.champion.version,
    )
    unwell, wrong_times = clock_faults(span), time_faults(span, options.time_feature)
    if wrong_times is not None:
        fault, is_unwell = wrong_times
        unwell, notes = ((*unwell, fault), notes) if is_unwell else (unwell, [*notes, fault])
    facts = {name: value for name, value in asdict(span).items() if name not in _OF_TIMES_ALONE} | {
        "versions": dict(span.versions or {}),
        "unwell": unwell,
    }
    rows = {"captured": RowCounts(span.rows, span.rows)}
    if span.rows < options.rows_needed:
        reference_rows = int(trained.statistics.datasets[0].num_examples)
        report = SkewReport(INSUFFICIENT, (), {}, reference_rows, span.rows, options.rows_needed)
        return Compared(report, trained.statistics, None, origin, facts, rows, notes=(*notes, *facts["unwell"]))
    current = generate_statistics(read_features(files, list(trained.types)), options=comparable_options())
    report = compare_statistics(trained.statistics, current, trained.schema, options)
    notes += facts["unwell"]
    row_skew = _compare_rows(context, options, trained, files, notes) if options.identifiers else None
    attribution = None
    if options.attribute and report.verdict in (DRIFT, PIPELINE_FAULT):
        attribution = _attribute(context, options, trained, files, report, notes)
    return Compared(
        report=report,
        reference=trained.statistics,
        current=current,
        origin=origin,
        facts=facts,
        rows=rows,
        attribution=attribution,
        row_skew=row_skew,
        notes=tuple(notes),
        done=lambda: cursor.done(window),
    )


def _check_not_silent(
    context: StepContext,
    requests: CapturedRequests,
    names: Sequence[str],
    champion: ServedVersion,
    options: SkewOptions,
    notes: Sequence[str],
) -> None:
    last = read_span(requests.fetch(names[-1:], context.scratch / "newest"), None).captured_until if names else None
    check_not_silent(
        context.spec.services,
        str(options.model_name),
        last or champion.since,
        last is None,
        options.silent_after_s,
        "".join(f"; {note}" for note in notes),
    )


def _read_trained(context: StepContext, name: str, split: str) -> _Trained:
    champion = read_record(context.store, name).champion
    if champion is None or not champion.statistics or not champion.schema:
        raise BadInput(f"no champion of model {name!r} with statistics and schema; deploy one first")
    stored = context.store.manifest(champion.statistics).reference(champion.statistics)
    of = ModelProperties.of(champion.model)
    trained_on = of.statistics_fingerprint
    if trained_on is not None and trained_on != stored.fingerprint:
        raise BadInput(
            f"{champion.statistics}: these are not the statistics that version {champion.version} of {name!r} "
            f"was trained on (fingerprint {stored.fingerprint[:12]}…, expected {trained_on[:12]}…): their task has "
            "run again since. Deploy a model that was trained on the new ones"
        )
    statistics = load_statistics(context.store.local(stored) / split / STATISTICS_FILE)
    schema_artifact = schema_in_force(context.store, champion.schema)
    schema = load_schema(context.store.local(schema_artifact) / SCHEMA_FILE)
    _keep_comparators(schema, of.features)
    known = features_by_name(statistics)
    types = {
        feature.name: type_name(known[feature.name])
        for feature in schema.feature
        if feature.HasField("skew_comparator") and feature.name in known
    }
    return _Trained(champion, statistics, schema, stored, types)


def _keep_comparators(schema: Any, features: Any) -> None:
    """Drops the comparators of features that the model does not take: the server never sees them."""
    for feature in schema.feature:
        if features and feature.name not in features:
            feature.ClearField("skew_comparator")


def _training_files(context: StepContext, trained: _Trained, split: str) -> list[RowsFile]:
    """The files of the examples that the champion's statistics were computed from."""
    examples = context.store.manifest(trained.stored.uri).inputs.get("examples")
    if not examples:
        raise BadInput(f"{trained.stored.uri}: the manifest names no examples that the statistics were computed from")
    return _example_files(context.store.local(examples[0]), split)


def _example_files(folder: Path, split: str) -> list[RowsFile]:
    from airflow_hops.data.raw_features import example_files

    return [RowsFile.at(path) for path in example_files(folder, split)]


def _compare_rows(
    context: StepContext, options: SkewOptions, trained: _Trained, files: Sequence[RowsFile], notes: list[str]
) -> RowSkewReport | None:
    from airflow_hops.runtime.skew.rows import detect_row_skew

    names = list(dict.fromkeys([*options.identifiers, *trained.types]))
    if context.has_input("examples"):
        training = _example_files(context.local("examples"), options.split)
    else:
        try:
            training = _training_files(context, trained, options.split)
        except BadInput as error:
            notes.append(f"Rows were not compared: {error}")
            return None
    return detect_row_skew(
        lambda columns: read_features(training, columns or names, prefix=""),
        lambda columns: read_features(files, columns or names),
        identifiers=options.identifiers,
        float_rounding=options.float_rounding,
    )


def _attribute(
    context: StepContext,
    options: SkewOptions,
    trained: _Trained,
    files: Sequence[RowsFile],
    report: SkewReport,
    notes: list[str],
) -> Attribution | None:
    """Effects on the champion's predictions; None, and a note, where its model or examples are gone."""
    from airflow_hops.runtime.skew.attribution import attribute_drift

    try:
        training = _training_files(context, trained, options.split)
        model = model_folder(context.store, trained.champion.model)
        return attribute_drift(
            model,
            lambda columns: read_features(training, columns, prefix=""),
            lambda columns: read_features(files, columns),
            features=report.features,
            classes=ModelProperties.of(trained.champion.model).classes,
        )
    except BadInput as error:
        notes.append(f"Effects on predictions are not known: {error}")
        return None
