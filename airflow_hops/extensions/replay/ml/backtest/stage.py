"""Assesses a candidate of a back-test as live monitors would have after each period."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.errors import BadInput, DamagedArtifact
from airflow_hops.core.metrics import LOWER_IS_BETTER
from airflow_hops.core.performance import PerformanceOptions, VersionPerformance
from airflow_hops.core.skew import SkewOptions, SkewReference
from airflow_hops.core.times import as_utc
from airflow_hops.extensions.replay.core.backtest import ASSESSMENT_FILE, Assessment, PeriodAssessment, delay_key
from airflow_hops.extensions.replay.ml.backtest.history import (
    AFTER,
    BEFORE,
    UNKNOWN,
    UNLABELLED,
    UNTIMED,
    History,
    ScoringPlan,
    loaded_model,
    score_history,
)
from airflow_hops.ml.metrics.class_names import CANDIDATE, class_names
from airflow_hops.ml.metrics.judging import METRICS, Judge
from airflow_hops.ml.metrics.metrics import Array
from airflow_hops.ml.metrics.scoring import ScoredModel
from airflow_hops.ml.performance.figures import measure
from airflow_hops.ml.performance.join import Predictions
from airflow_hops.ml.performance.versions import US, Version, as_iso, measure_whole, with_baseline
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.skew.compare import compare_rows
from airflow_hops.ml.skew.fetch import CapturedSpan, Fetched
from airflow_hops.ml.skew.trained import Trained
from airflow_hops.ml.spark.pools import cluster_pool
from airflow_hops.ml.step.context import StepContext

# Each period is assessed with what a live monitor would have known at its end: rows up to it, labels that had arrived
# (for each delay), and rows of earlier periods that were too few for a verdict. Periods are therefore assessed in
# order, while scoring, which does not depend on time, is done once for all rows in parallel.

log = logging.getLogger(__name__)

_MEASURED_BY = ("window_s", "min_rows", "estimates")
"""Options of the performance stage that apply: the history has labels and keys, and delays are arguments."""


def run(
    context: StepContext,
    *,
    ticks: Sequence[str],
    trained_until: str,
    delays_s: Sequence[float],
    skew: Mapping[str, Any],
    performance: Mapping[str, Any],
    version: int = 1,
) -> Artifact:
    """Scores the history after a candidate's training and assesses the candidate in each period.

    On a cluster, executors read the history and the training data, except for the held-out rows.

    ``attribute`` and ``estimates`` take most of the time: leave them out unless a policy uses them.

    Args:
        context: Step with the inputs ``model``, ``statistics``, ``schema`` and ``examples`` of the candidate, and
            ``history``, the examples of all rows.
        ticks: Start of the first period, then the end of each period; ISO 8601, ascending.
        trained_until: End of the candidate's training data, ISO 8601; periods that begin before it are left out.
        delays_s: Delays of labels, seconds.
        skew: Options of the live skew monitor (:class:`~airflow_hops.core.skew.SkewOptions`).
        performance: Options of the live performance monitor
            (:class:`~airflow_hops.core.performance.PerformanceOptions`); only ``window_s``, ``min_rows``
            and ``estimates`` are used.
        version: Version number of the candidate in ``skew`` and ``measured``.

    Raises:
        BadInput: an option is out of range, no period is left, the history has no row in the periods, or it lacks an
            input column of the candidate.
    """
    values = SkewOptions(**{**skew, "model_name": skew.get("model_name") or CANDIDATE})
    chosen = {name: performance[name] for name in _MEASURED_BY if name in performance}
    measured_by = PerformanceOptions(str(values.model_name), **chosen)
    if wrong := [delay for delay in delays_s if not 0 <= delay < float("inf")]:
        raise BadInput(f"delays_s has {wrong[0]!r}; expected seconds of at least 0")
    store, model, examples = context.store, context.input("model"), context.input("examples")
    bounds = _periods(ticks, trained_until)
    properties = ModelProperties.of(store.manifest(model.uri))
    history_of = ExamplesProperties.of(store.manifest(context.input("history").uri))
    served = loaded_model(store, model)
    names = class_names({CANDIDATE: served}, {CANDIDATE: properties}, history_of.target)
    stored, schema = context.input("statistics"), context.input("schema")
    origin = SkewReference(stored.uri, stored.fingerprint, schema.uri, values.model_name, version)
    trained = Trained.read(store, values.split, model, stored, schema, origin, served)
    if lacking := [name for name in trained.types if name not in served.inputs]:
        takes = ", ".join(served.inputs)
        raise BadInput(f"the candidate does not take feature {lacking[0]!r}, on which it was trained; it takes {takes}")
    try:
        known = with_baseline(store, version, served, properties, examples)
    except (BadInput, DamagedArtifact) as error:
        judge = Judge(served.problem, METRICS[served.problem].metric, names.of_candidate)
        known = Version(version, judge, why=f"The candidate has no baseline and no estimates: {error}")
    manifest, pool = store.manifest(context.input("history").uri), cluster_pool(context)
    paths = (PurePosixPath(entry.path) for entry in manifest.files)
    splits = sorted({path.parts[0] for path in paths if len(path.parts) == 2 and path.suffix == ".parquet"})
    files = [file for those in pool.splits(context, "history", splits).values() for file in those]
    with context.output() as writer:
        scored = writer.path / "scored"
        folder = pool.folder(context, writer) if pool.reads_store else OutputFolder(str(scored))
        history = score_history(pool, files, ScoringPlan(model, store, history_of, names, bounds, folder))
        assessor = _Assessor(history, known, trained, replace(values, identifiers=()), measured_by, delays_s)
        periods, count = [], len(bounds) - 1
        for number in range(count):
            periods.append(assessor.period(number))
            context.progress((number + 1) / count, f"period {number + 1} of {count}")
        shutil.rmtree(scored, ignore_errors=True)
        metric = known.judge.metric
        notes = [*_notes(history, history_of, served, values), *assessor.notes(periods)]
        assessment = Assessment(served.problem, metric, metric in LOWER_IS_BETTER, tuple(periods), tuple(notes))
        for note in assessment.notes:
            log.warning("%s", note)
        rows = len(history.rows.labels)
        aside = {why: count for why in (BEFORE, AFTER, UNTIMED) if (count := history.counts[why])}
        (writer.path / ASSESSMENT_FILE).write_text(json.dumps(assessment.to_dict(), indent=1, allow_nan=False))
        return writer.commit(
            rows={"history": RowCounts(rows + sum(aside.values()), rows, aside)},
            metrics={"periods": len(assessment.periods)},
            properties={"problem": assessment.problem, "metric": assessment.metric, "notes": list(assessment.notes)},
        )


def _periods(ticks: Sequence[str], end: str) -> Array:
    """Returns the bounds of the periods after the training, in microseconds since the epoch."""
    try:
        times, trained_until = [as_utc(tick) for tick in ticks], as_utc(end)
    except ValueError as error:
        raise BadInput(
            f"ticks and trained_until: {error}; expected times of ISO 8601, such as 2013-05-01T00:00:00Z"
        ) from error
    if len(times) < 2 or sorted(set(times)) != times:
        raise BadInput(f"ticks is {list(ticks)!r:.200}; expected at least two times of ISO 8601, ascending")
    left = [time for time in times if time >= trained_until]
    if len(left) < 2:
        raise BadInput(f"no period begins after the candidate's training data, which ends {end}; the last: {ticks[-1]}")
    return np.array([round(time.timestamp() * US) for time in left], np.int64)


@dataclass(frozen=True)
class _Assessor:
    """Assesses a candidate period by period, in order, with only the data known at the time."""

    history: History
    version: Version
    trained: Trained
    skew: SkewOptions
    performance: PerformanceOptions
    delays_s: Sequence[float]
    waiting: list[int] = field(default_factory=list)
    said: dict[str, None] = field(default_factory=dict)

    def period(self, number: int) -> PeriodAssessment:
        """Assesses a period; rows too few for a verdict are added to the next one, as in a live monitor."""
        start, end = self.history.bounds[number : number + 2].tolist()
        self.waiting.append(number)
        waiting = tuple(self.waiting)
        span = self._span(self.history.between(int(self.history.bounds[waiting[0]]), end).time_us)
        compared = compare_rows(self.trained, Fetched(self.history.inputs(waiting), span), self.skew)
        if compared.current is not None:
            self.waiting.clear()
        self.said.update(dict.fromkeys(compared.notes))
        rows = self.history.between(start, end)
        usable = rows.where(_finite(rows) & np.isfinite(rows.labels))
        return PeriodAssessment(
            start=as_iso(start),
            end=as_iso(end),
            rows=len(rows.labels),
            figures=measure(self.version.judge, usable.labels, usable.outputs) if len(usable.labels) else {},
            skew=compared.properties.to_dict(),
            compared=compared.report.rows_current,
            measured=self._measured(end),
        )

    def notes(self, periods: Sequence[PeriodAssessment]) -> Iterator[str]:
        """Yields reasons for missing results."""
        if self.version.why:
            yield self.version.why
        metric = self.version.judge.metric
        without = [each for each in periods if each.rows and metric not in each.figures]
        if without:
            yield (
                f"In {len(without)} of {len(periods)} periods {metric} is not defined: there are no labels, or "
                f"those of one class alone; the first begins {without[0].start}"
            )
        yield from self.said

    def _span(self, time_us: Array) -> CapturedSpan:
        """Returns rows as a span of requests, each at its row's time."""
        if not len(time_us):
            return CapturedSpan()
        first, last = int(time_us[0]), int(time_us[-1])
        versions = {str(self.version.number): len(time_us)}
        span = CapturedSpan(len(time_us), versions, as_iso(first), as_iso(last))
        return span if self.skew.time_feature is None else span.of_days(first // US, last // US)

    def _measured(self, tick: int) -> dict[str, VersionPerformance]:
        """Returns the performance that would have been measured at a tick, by delay of the labels."""
        window = self.performance.window_s
        start = None if window is None else tick - int(window * US)
        rows = self.history.between(int(self.history.bounds[0]) if start is None else start, tick)
        rows = rows.where(_finite(rows))
        result, estimates = dict[str, VersionPerformance](), None
        for delay in self.delays_s if len(rows.labels) else ():
            came = rows.time_us <= tick - round(delay * US)
            known = replace(rows, labels=np.where(came, rows.labels, np.nan))
            begin = int(rows.time_us[0]) if start is None else start
            measured = measure_whole(self.performance, tick, self.version, known, begin, estimates)
            estimates = measured.estimates
            result[delay_key(delay)] = measured
        return result


def _finite(rows: Predictions) -> Array:
    return np.asarray(np.isfinite(rows.outputs).all(axis=tuple(range(1, rows.outputs.ndim))))


def _notes(
    history: History, properties: ExamplesProperties, served: ScoredModel, options: SkewOptions
) -> Iterator[str]:
    counts = history.counts
    if counts[UNTIMED]:
        yield f"Rows whose {properties.time!r} is not a time in seconds since the epoch: {counts[UNTIMED]}; left out"
    if counts[UNLABELLED]:
        yield f"Rows of the periods without a label: {counts[UNLABELLED]}; they are compared, but not measured"
    if counts[UNKNOWN]:
        yield (
            f"Rows of the periods whose class the candidate does not know: {counts[UNKNOWN]}; they are compared, but "
            "not measured: it is worse than its figures say"
        )
    if infinite := int((~_finite(history.rows)).sum()):
        yield f"Rows of which {served.output} is NaN or infinite: {infinite}; they are compared, but not measured"
    if empty := sum(not files for files in history.files):
        yield f"{empty} of {len(history.files)} periods have no rows; a live monitor with silent_after would fail there"
    if options.time_feature not in (None, properties.time):
        yield f"The monitor's time_feature is {options.time_feature!r}; {properties.time!r} is used instead"
    if options.identifiers:
        yield "Single rows (identifiers) were not compared: those of the history are not among the training data"
