"""Compares rows with a model's training data, or the statistics of one span of data with those of another."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ENDPOINT, ModelProperties, StatisticsProperties
from airflow_hops.core.errors import ArtifactNotFound, BadInput
from airflow_hops.core.extensions import ROW_COMPARISONS, load_extension
from airflow_hops.core.skew import DRIFT, INSUFFICIENT, PIPELINE_FAULT, SkewOptions, SkewProperties, SkewReference
from airflow_hops.core.times import as_utc
from airflow_hops.ml.distances.detect import compare_sides, side_of
from airflow_hops.ml.distances.repeats import without_repeats
from airflow_hops.ml.distances.report import FeatureSkew, SkewReport
from airflow_hops.ml.distances.sides import Side
from airflow_hops.ml.distances.windows import OwnWindow
from airflow_hops.ml.schema import SCHEMA_FILE, load_schema
from airflow_hops.ml.skew.attribution import Attribution, attribute_drift
from airflow_hops.ml.skew.feature_rows import FeatureRows
from airflow_hops.ml.skew.fetch import Fetched
from airflow_hops.ml.skew.predictions import compare_captured, compare_predictions
from airflow_hops.ml.skew.trained import Trained
from airflow_hops.ml.statistics import STATISTICS_FILE
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)


class ComparedRows(Protocol):
    """A comparison of single rows, of an entry point of the group ``airflow_hops.row_comparisons``.

    Attributes:
        pairs: Number of compared pairs of rows.
        skewed_pairs: Number of those that differ.
    """

    pairs: int
    skewed_pairs: int

    @property
    def skewed(self) -> Sequence[str]:
        """Features that differ in some pair."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON value of the report."""


@dataclass(frozen=True)
class Compared:
    """Comparison of two sides, and the facts that the artifact records.

    Attributes:
        current: The current rows; None if there were too few rows.
        origin: Source of the reference.
        facts: Properties of the current rows; at least ``window_end``.
        prediction: Comparison of predictions; None if there was none.
        attribution: Effects on predictions; None if they were not computed.
        row_skew: Comparison of single rows; None if there was none.
        notes: Reasons why a part is missing.
    """

    report: SkewReport
    reference: Side
    current: Side | None
    origin: SkewReference
    facts: Mapping[str, Any]
    prediction: FeatureSkew | None = None
    attribution: Attribution | None = None
    row_skew: ComparedRows | None = None
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> dict[str, RowCounts]:
        """Row counts of the artifact."""
        rows = self.report.rows_current
        return {"captured" if self.origin.model else "current": RowCounts(rows, rows)}

    @property
    def properties(self) -> SkewProperties:
        """Properties of the artifact."""
        report, features, prediction = self.report, self.report.features, self.prediction
        effects = {name: features[name].effect for name in report.drifted}
        distance = None
        if prediction is not None and prediction.score is not None and prediction.threshold is not None:
            distance = prediction.score, prediction.threshold
        return SkewProperties(
            verdict=report.verdict,
            drifted=report.drifted,
            lost=report.lost,
            causes=report.causes,
            effects={name: effect for name, effect in effects.items() if effect is not None},
            problem=self.attribution.problem if self.attribution else None,
            prediction=distance,
            skewed=tuple(self.row_skew.skewed) if self.row_skew else (),
            reference=self.origin,
            min_rows=report.min_rows,
            scores={name: (skew.score, skew.threshold) for name, skew in features.items()},
            **self.facts,
        )


def compare_rows(
    trained: Trained, fetched: Fetched, options: SkewOptions, examples: Artifact | None = None
) -> Compared:
    """Compares rows with a model's training data; the verdict is ``insufficient`` if there are too few.

    Args:
        trained: The training data.
        fetched: The rows.
        options: Options of the comparison.
        examples: Examples that single rows are compared with, instead of the training data.

    Raises:
        BadInput: no feature can be compared, or ``examples`` lacks the split.
    """
    span, rows, reference = fetched.span, fetched.rows, trained.reference
    facts = {**vars(span), "unwell": fetched.unwell}
    del facts["rows"]
    notes = [*fetched.notes, *fetched.unwell]
    if span.rows < options.rows_needed:
        report = SkewReport(INSUFFICIENT, {}, reference.rows, span.rows, options.rows_needed)
        return Compared(report, reference, None, trained.origin, facts, notes=tuple(notes))
    current, repeats = without_repeats(reference, rows.collect(list(trained.types)))
    notes += repeats
    period = (span.window_start, span.window_end) if span.window_start else (span.captured_from, span.captured_until)
    windows = _windows(options, trained.time, *period)
    report = compare_sides(reference, current, trained.schema, options, windows)
    compared = Compared(report, reference, current, trained.origin, facts)
    is_wanted = options.predictions or (options.attribute and report.verdict in (DRIFT, PIPELINE_FAULT))
    if is_wanted:
        try:
            compared = _with_predictions(compared, rows, trained, options, windows)
        except BadInput as error:
            notes.append(f"Predictions, and effects on them, are not known: {error}")
    if options.identifiers:
        if not rows.pool.runs_here:
            log.info("Rows with the same identifiers are compared on this machine, which reads all of them")
        names = list(dict.fromkeys([*options.identifiers, *trained.types]))
        try:
            training = trained.rows_of(examples) if examples else trained.rows()
        except BadInput as error:
            if examples:
                raise
            notes.append(f"Rows were not compared: {error}")
        else:
            row_skew: ComparedRows = load_extension(ROW_COMPARISONS, "identifiers")(
                lambda columns: training(columns or names),
                lambda columns: rows(columns or names),
                identifiers=options.identifiers,
                float_rounding=options.float_rounding,
            )
            compared = replace(compared, row_skew=row_skew)
    return replace(compared, notes=(*notes, *report.notes))


def _windows(options: SkewOptions, time: str | None, start: str | None, end: str | None) -> OwnWindow | None:
    if not options.own_windows:
        return None
    if time is None:
        raise BadInput(
            "own_windows is True, but the training data has no time column; name it as the examples' time, or leave "
            "own_windows out"
        )
    if start is None or end is None:
        raise BadInput("own_windows is True, but the period of the current rows is not known: they have no window")
    return time, as_utc(start).timestamp(), as_utc(end).timestamp()


def _with_predictions(
    compared: Compared, rows: FeatureRows, trained: Trained, options: SkewOptions, windows: OwnWindow | None
) -> Compared:
    """Compares predictions, and adds the effects on them; raises ``BadInput`` if the model or a sample was deleted."""
    assert compared.current is not None
    reference, current = compared.reference.sample, compared.current.sample
    if reference is None or current is None:
        raise BadInput("the statistics of the training data hold no sample of rows")
    if ModelProperties.of(trained.model).format == ENDPOINT:
        return (
            replace(compared, prediction=compare_captured(reference, rows, options))
            if options.predictions
            else compared
        )
    served, classes = trained.model_served(), ModelProperties.of(trained.model).classes
    if not served.inputs.keys() <= set(current.column_names):  # it takes what is not compared, such as the time
        side = replace(compared.current, sample=rows.sample(list(served.inputs)))
        current = without_repeats(compared.reference, side)[0].sample
    if options.predictions:
        prediction = compare_predictions(served, reference, current, options, windows=windows, classes=classes)
        compared = replace(compared, prediction=prediction)
    report = compared.report
    if not options.attribute or report.verdict not in (DRIFT, PIPELINE_FAULT):
        return compared
    attribution = attribute_drift(served, reference, current, features=report.features, classes=classes)
    effects = {name: (result.effect, result.effect_signed) for name, result in attribution.effects.items()}
    return replace(compared, report=report.with_effects(effects), attribution=attribution)


def compare_spans(context: StepContext, options: SkewOptions) -> Compared:
    """Compares the statistics of two spans, except features that differ without a change.

    Raises:
        BadInput: an input is not statistics with the split, or no feature can be compared.
    """
    sides = [context.input(role) for role in ("reference", "current")]
    known = [StatisticsProperties.of(side) for side in sides]
    aside, notes = set[str | None](), []
    old, new = ({t.label: t for t in properties.target.all} if properties.label else {} for properties in known)
    for label in {**old, **new}:
        names = [each[label].classes if label in each else None for each in (old, new)]
        if names[0] != names[1]:
            aside.add(label)
            listed = "; ".join(", ".join(each or ("no names",)) for each in names)
            notes.append(f"The label {label!r} was not compared: its numbers stand for other classes ({listed})")
    compared = []
    for role, side, properties in zip(("reference", "current"), sides, known, strict=True):
        if side.kind != "statistics":
            raise BadInput(f"input {role!r} ({side.uri}) is {side.kind!r}, expected statistics")
        path = context.store.local(side) / options.split / STATISTICS_FILE
        if not path.is_file():
            listed = ", ".join(properties.splits)
            raise ArtifactNotFound(f"{side.uri}/{options.split}").with_text(
                f"{side.uri}: there are no statistics of split {options.split!r}; there are {listed}"
            )
        loaded = side_of(path)
        # Times and keys always differ between spans, and weights are not data: they do not indicate a change.
        left_out, features = (
            aside | {properties.time, properties.key, properties.weight},
            loaded.statistics.datasets[0].features,
        )
        retained = [feature for feature in features if ".".join(feature.path.step) not in left_out]
        del features[:]
        features.extend(retained)
        compared.append(loaded)
    schema = context.input("schema") if context.has_input("schema") else None
    start, end = known[1].window or (None, None)
    reference, current = compared
    report = compare_sides(
        reference,
        current,
        load_schema(context.store.local(schema) / SCHEMA_FILE) if schema else None,
        options,
        _windows(options, known[0].time, start, end),
    )
    return Compared(
        report,
        reference,
        current,
        SkewReference(sides[0].uri, sides[0].fingerprint, schema.uri if schema else None),
        facts={
            "current": sides[1].uri,
            "split": options.split,
            "windows": {"reference": known[0].window, "current": known[1].window},
            "window_end": end,
        },
        notes=(*notes, *report.notes),
    )
