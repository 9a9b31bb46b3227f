"""Compares rows with a model's training data, or the statistics of one span of data with those of another."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_hops.core.contract.artifacts import Artifact, BadInput, RowCounts
from airflow_hops.core.contract.properties import ModelProperties, StatisticsProperties
from airflow_hops.core.contract.skew import (
    DRIFT,
    INSUFFICIENT,
    PIPELINE_FAULT,
    SkewOptions,
    SkewProperties,
    SkewReference,
)
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.monitoring.captured.feature_rows import FeatureRows
from airflow_hops.ml.monitoring.skew.attribution import Attribution, attribute_drift
from airflow_hops.ml.monitoring.skew.detect import compare_statistics
from airflow_hops.ml.monitoring.skew.report import SkewReport
from airflow_hops.ml.monitoring.skew.rows import RowSkewReport, detect_row_skew
from airflow_hops.ml.schemas import SCHEMA_FILE, load_schema
from airflow_hops.ml.stages.skew.fetch import Fetched
from airflow_hops.ml.stages.skew.trained import Trained
from airflow_hops.ml.statistics import STATISTICS_FILE, load_statistics
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compared:
    """Comparison with the statistics of both sides, and the facts that the artifact records.

    Attributes:
        current: Statistics of the current rows; None if there were too few rows.
        origin: Source of the reference.
        facts: Properties of the current rows; at least ``window_end``.
        attribution: Effects on predictions; None if they were not computed.
        row_skew: Comparison of single rows; None if there was none.
        notes: Reasons why a part is missing.
    """

    report: SkewReport
    reference: Any
    current: Any
    origin: SkewReference
    facts: Mapping[str, Any]
    attribution: Attribution | None = None
    row_skew: RowSkewReport | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, reference: Any, current: Any, schema: Any, options: SkewOptions, **known: Any) -> Compared:
        """Compares two ``DatasetFeatureStatisticsList`` by a schema; ``known`` are further attributes."""
        report = compare_statistics(reference, current, schema, options)
        return cls(report=report, reference=reference, current=current, **known)

    @property
    def rows(self) -> dict[str, RowCounts]:
        """Row counts of the artifact."""
        rows = self.report.rows_current
        return {"captured" if self.origin.model else "current": RowCounts(rows, rows)}

    @property
    def properties(self) -> SkewProperties:
        """Properties of the artifact."""
        report, features = self.report, self.report.features
        effects = {name: features[name].effect for name in report.drifted}
        return SkewProperties(
            verdict=report.verdict,
            drifted=report.drifted,
            lost=report.lost,
            causes=report.causes,
            effects={name: effect for name, effect in effects.items() if effect is not None},
            problem=self.attribution.problem if self.attribution else None,
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
        BadInput: a feature is missing from the rows, or is of another type; there is nothing to compare; or there are
            no ``examples`` of the split.
    """
    span, rows = fetched.span, fetched.rows
    facts = {**vars(span), "unwell": fetched.unwell}
    del facts["rows"]
    notes = [*fetched.notes, *fetched.unwell]
    if span.rows < options.rows_needed:
        reference_rows = int(trained.statistics.datasets[0].num_examples)
        report = SkewReport(INSUFFICIENT, (), {}, reference_rows, span.rows, options.rows_needed)
        return Compared(report, trained.statistics, None, trained.origin, facts, notes=tuple(notes))
    current = rows.statistics(list(trained.types))
    compared = Compared.of(trained.statistics, current, trained.schema, options, origin=trained.origin, facts=facts)
    if options.attribute and compared.report.verdict in (DRIFT, PIPELINE_FAULT):
        try:
            compared = _with_effects(compared, trained, rows)
        except BadInput as error:
            notes.append(f"Effects on predictions are not known: {error}")
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
            row_skew = detect_row_skew(
                lambda columns: training(columns or names),
                lambda columns: rows(columns or names),
                identifiers=options.identifiers,
                float_rounding=options.float_rounding,
            )
            compared = replace(compared, row_skew=row_skew)
    return replace(compared, notes=tuple(notes))


def _with_effects(compared: Compared, trained: Trained, rows: FeatureRows) -> Compared:
    """Adds effects on predictions; raises ``BadInput`` if the model or its examples are gone."""
    attribution = attribute_drift(
        trained.served or model_folder(trained.store, trained.model),
        trained.rows(rows.pool),
        rows,
        features=compared.report.features,
        classes=ModelProperties.of(trained.model).classes,
    )
    effects = {name: result.effect for name, result in attribution.effects.items()}
    features = {name: replace(skew, effect=effects.get(name)) for name, skew in compared.report.features.items()}
    return replace(compared, report=replace(compared.report, features=features), attribution=attribution)


def compare_spans(context: StepContext, options: SkewOptions) -> Compared:
    """Compares the statistics of two spans, except features that say nothing about a change.

    Raises:
        BadInput: an input is not statistics with the split; a feature is missing from the later span, or is of another
            type; or there is nothing to compare.
    """
    sides = [context.input(role) for role in ("reference", "current")]
    known = [StatisticsProperties.of(side) for side in sides]
    aside, notes = set[str | None](), []
    before, now = ({t.label: t for t in of.target.all} if of.label else {} for of in known)
    for label in {**before, **now}:
        names = [each[label].classes if label in each else None for each in (before, now)]
        if names[0] != names[1]:
            aside.add(label)
            listed = "; ".join(", ".join(each or ("no names",)) for each in names)
            notes.append(f"The label {label!r} was not compared: its numbers stand for other classes ({listed})")
    statistics = []
    for role, side, of in zip(("reference", "current"), sides, known, strict=True):
        if side.kind != "statistics":
            raise BadInput(f"input {role!r} ({side.uri}) is {side.kind!r}, expected statistics")
        path = context.store.local(side) / options.split / STATISTICS_FILE
        if not path.is_file():
            listed = ", ".join(of.splits)
            raise BadInput(f"{side.uri}: there are no statistics of split {options.split!r}; there are {listed}")
        loaded = load_statistics(path)
        # Times and keys always differ between spans, and weights are not data: they do not indicate a change.
        left_out, features = aside | {of.time, of.key, of.weight}, loaded.datasets[0].features
        compared = [feature for feature in features if ".".join(feature.path.step) not in left_out]
        del features[:]
        features.extend(compared)
        statistics.append(loaded)
    schema = context.input("schema") if context.has_input("schema") else None
    window_end = known[1].window[1] if known[1].window else None
    reference, current = statistics
    return Compared.of(
        reference,
        current,
        load_schema(context.store.local(schema) / SCHEMA_FILE) if schema else None,
        options,
        origin=SkewReference(sides[0].uri, sides[0].fingerprint, schema.uri if schema else None),
        facts={
            "current": sides[1].uri,
            "split": options.split,
            "windows": {"reference": known[0].window, "current": known[1].window},
            "window_end": window_end,
        },
        notes=tuple(notes),
    )
