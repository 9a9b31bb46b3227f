"""The step of the performance stage: what served predictions were worth, once their labels have come."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from airflow_hops.contract.artifacts import Artifact, BadInput, RowCounts
from airflow_hops.contract.performance import (
    REPORT_FILE,
    LabelAge,
    PerformanceOptions,
    PerformanceReport,
    VersionPerformance,
    worse_by,
)
from airflow_hops.contract.properties import ModelProperties
from airflow_hops.contract.target import BINARY, REGRESSION
from airflow_hops.runtime.captured.requests import CapturedRequests
from airflow_hops.runtime.captured.values import as_number, class_numbers
from airflow_hops.runtime.evaluate.judging import METRICS, Judge
from airflow_hops.runtime.evaluate.metrics import Array
from airflow_hops.runtime.performance.figures import measure
from airflow_hops.runtime.performance.join import NO_LABEL, Joined, Predictions, join_labels
from airflow_hops.runtime.performance.labels import Labels, one_for_each, read_labels
from airflow_hops.runtime.performance.notes import FEWEST_OF_A_CLASS, notes_of, unwell
from airflow_hops.runtime.performance.versions import Version, find_version
from airflow_hops.runtime.step.context import StepContext
from airflow_hops.store.model_records import read_record

log = logging.getLogger(__name__)
_US = 1_000_000
_DELAYS = (0.5, 0.95)


def run(context: StepContext, **options: Any) -> Artifact:
    """The step: joins captured predictions with labels, and measures each version by period and over the window.

    Args:
        context: The step's context: services ``serving_capture_path`` and ``tracking_uri``, and input ``labels`` where
            they are an artifact.
        options: Those of :class:`airflow_hops.contract.performance.PerformanceOptions`.

    Raises:
        BadInput: nothing was captured, or nothing in the window; labels or captured rows lack a column; all labels are
            no class of the model.
    """
    given = PerformanceOptions(**options)
    champion = read_record(context.store, given.model_name).champion
    if champion is None:
        raise BadInput(f"model_name is {given.model_name!r}, which has no champion; deploy one first")
    known = ModelProperties.of(champion.model)
    target = known.target
    requests = CapturedRequests.expected(context.spec.services, context.store, given.model_name)
    name = given.label_column or target.label
    table, untimed = read_labels(context, given, requests, name)
    labels = one_for_each(table, given.keys, given.as_of_time, untimed)
    joined = join_labels(requests, labels, given, target.problem)
    as_of_us, window = _window(joined, given)
    versions = {number: find_version(context, given.model_name, number, known) for number in window}
    values, invalid = _values(labels, versions, window, name)
    measured = _Measured(given, as_of_us, versions, values)
    start_us = min(int(each.time_us.min()) for each in window.values())
    if given.window_s is not None:
        start_us = as_of_us - int(given.window_s * _US)
    report = PerformanceReport(
        model_name=given.model_name,
        problem=target.problem,
        metric=METRICS[target.problem].metric,
        label=name,
        as_of=_iso(as_of_us),
        versions=tuple(measured.whole(number, window[number], start_us) for number in window),
        labels=replace(joined.counts, invalid=invalid),
        periods=tuple(each for number in window for each in measured.periods(number, window[number])),
        ages=tuple(_ages(window, as_of_us, given)),
        delay_s=_delays(joined.versions),
    )
    report = replace(report, unwell=tuple(unwell(report)))
    report = replace(report, notes=tuple(notes_of(report, joined, versions, given)))
    return _write(context, report, champion.version)


def _window(joined: Joined, options: PerformanceOptions) -> tuple[int, dict[int, Predictions]]:
    """The time to look back from, in microseconds, and the predictions of the window by version.

    Raises:
        BadInput: there are none.
    """
    if not joined.versions:
        raise BadInput(f"no request of model {options.model_name!r} was captured yet")
    earliest = min(int(each.time_us.min()) for each in joined.versions.values())
    newest = max(int(each.time_us.max()) for each in joined.versions.values())
    as_of = options.as_of_time
    as_of_us = (joined.present_us // _US + 1) * _US if as_of is None else int(as_of.timestamp() * _US)
    start_us = earliest if options.window_s is None else as_of_us - int(options.window_s * _US)
    window = {}
    for number, each in joined.versions.items():
        chosen = (each.time_us >= start_us) & (each.time_us < as_of_us)
        if chosen.any():
            window[number] = each.where(chosen)
    if not window:
        raise BadInput(
            f"no captured prediction of model {options.model_name!r} is from {_iso(start_us)} to {_iso(as_of_us)}; the "
            f"captured ones are from {_iso(earliest)} to {_iso(newest)}: see that the server captures, and that "
            "time_feature, as_of and window are what they should be"
        )
    return as_of_us, window


def _values(
    labels: Labels, versions: Mapping[int, Version], window: Mapping[int, Predictions], name: str
) -> tuple[dict[int, Array], int]:
    """Of each version, the number of each label's value, NaN for what is none; and how many joined labels are none."""
    found, total, wrong, expected = {}, 0, [], ""
    for number, version in versions.items():
        judge = version.judge
        if judge.problem == REGRESSION:
            expected = "numbers"
            numbers = np.array([as_number(value) for value in labels.values], np.float64)
        else:
            classes = judge.classes or ("0", "1")
            expected = f"classes {', '.join(classes)}"
            numbers = class_numbers(labels.values, judge.classes, None)
            numbers[~(numbers < len(classes))] = np.nan
        found[number] = numbers
        used = window[number].labels[window[number].labels != NO_LABEL]
        total += len(used)
        wrong.append(used[np.isnan(numbers[used])])
    invalid = sum(map(len, wrong))
    if total and invalid == total:
        example = labels.values[np.concatenate(wrong)[0]]
        raise BadInput(f"label {name!r}: none of {total} labels is usable, such as {example!r}; expected {expected}")
    return found, invalid


class _Measured:
    """Measures the predictions of versions."""

    def __init__(
        self, options: PerformanceOptions, as_of_us: int, versions: Mapping[int, Version], values: Mapping[int, Array]
    ) -> None:
        self._options, self._as_of_us, self._versions, self._values = options, as_of_us, versions, values

    def whole(self, number: int, rows: Predictions, start_us: int) -> VersionPerformance:
        """A version over the whole window."""
        found = self._measure(number, rows, start_us, self._as_of_us)
        version = self._versions[number]
        both = [name for name in found.figures if name in version.baseline]
        drop = {name: worse_by(name, found.figures[name], version.baseline[name]) for name in both}
        return VersionPerformance.from_dict({**found.to_dict(), "baseline": dict(version.baseline), "drop": drop})

    def periods(self, number: int, rows: Predictions) -> Iterator[VersionPerformance]:
        """A version in each period in which it answered, oldest first."""
        length = int(self._options.period_s * _US)
        place = rows.time_us // length
        order = np.argsort(place, kind="stable")
        found, starts = np.unique(place[order], return_index=True)
        for period, chosen in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
            yield self._measure(number, rows.where(chosen), period * length, (period + 1) * length)

    def _measure(self, number: int, rows: Predictions, start_us: int, end_us: int) -> VersionPerformance:
        version, numbers = self._versions[number], self._values[number]
        labels = np.full(len(rows.labels), np.nan)
        has_label = rows.labels != NO_LABEL
        labels[has_label] = numbers[rows.labels[has_label]]
        usable = np.isfinite(labels)
        old = rows.time_us <= self._as_of_us - int(self._options.label_delay_s * _US)
        chosen = usable & old
        count = int(chosen.sum())
        enough = self._options.min_rows
        figures = {}
        if version.is_known and count >= enough and _rarest(version.judge, labels[chosen]) >= FEWEST_OF_A_CLASS:
            figures = measure(version.judge, labels[chosen], rows.outputs[chosen])
        estimated = self._options.estimates and version.estimator is not None and len(labels) >= enough
        return VersionPerformance(
            version=number,
            start=_iso(start_us),
            end=_iso(end_us),
            rows=len(labels),
            labelled=int(usable.sum()),
            measured=count,
            figures=figures,
            estimates=version.estimator.estimate(version.judge, rows.outputs, version.baseline)
            if estimated and version.estimator
            else {},
        )


def _rarest(judge: Judge, labels: Array) -> float:
    """Rows of the rarer of two classes; without a limit for other problems."""
    return float(min((labels == 0).sum(), (labels == 1).sum())) if judge.problem == BINARY else np.inf


def _ages(window: Mapping[int, Predictions], as_of_us: int, options: PerformanceOptions) -> Iterator[LabelAge]:
    age_s = np.concatenate([(as_of_us - each.time_us) / _US for each in window.values()])
    has_label = np.concatenate([each.labels != NO_LABEL for each in window.values()])
    for low, high in zip((0.0, *options.ages_s), (*options.ages_s, None), strict=True):
        chosen = (age_s >= low) & (age_s < (np.inf if high is None else high))
        if chosen.any():
            yield LabelAge(low, high, int(chosen.sum()), int((chosen & has_label).sum()))


def _delays(versions: Mapping[int, Predictions]) -> tuple[float, float] | None:
    """Half and 95% of the labels that came did so within these; later ones would be later still."""
    delays = np.concatenate([each.delay_us[each.delay_us >= 0] for each in versions.values()])
    if not len(delays):
        return None
    low, high = np.quantile(delays / _US, _DELAYS)
    return float(low), float(high)


def _write(context: StepContext, report: PerformanceReport, champion: int) -> Artifact:
    for each in report.versions:
        said = ", ".join(f"{name} {v:.4g} ({low:.4g} to {high:.4g})" for name, (v, low, high) in each.figures.items())
        log.info(
            "Version %d: %d of %d predictions have labels; %s", each.version, each.labelled, each.rows, said or "-"
        )
        for name, (drop, low, high) in (each.drop or {}).items():
            log.info(
                "Version %d: %s is worse than at training by %.4g (%.4g to %.4g)", each.version, name, drop, low, high
            )
    for note in report.notes:
        log.warning("%s", note)
    rows = sum(each.rows for each in report.versions)
    labelled = sum(each.labelled for each in report.versions)
    told = report.of_version(champion) or max(report.versions, key=lambda each: each.rows)
    with context.output() as writer:
        (writer.path / REPORT_FILE).write_text(json.dumps(report.to_dict(), indent=1, allow_nan=False))
        return writer.commit(
            rows={"predictions": RowCounts(rows, labelled, {"no label": rows - labelled} if rows > labelled else {})},
            metrics={
                "rows": rows,
                "labelled": labelled,
                **{name: value for name, (value, _, _) in told.figures.items()},
                **{f"estimated_{name}": value for name, (value, _, _) in told.estimates.items()},
            },
            properties=report.properties.to_dict(),
        )


def _iso(us: int) -> str:
    return datetime.fromtimestamp(us / _US, UTC).isoformat()
