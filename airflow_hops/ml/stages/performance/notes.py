"""Writes notes on wrong labels, and on measurements that were not possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from airflow_hops.core.contract.performance import PerformanceOptions, PerformanceReport, VersionPerformance
from airflow_hops.core.contract.target import BINARY, REGRESSION
from airflow_hops.ml.stages.performance.join import Joined
from airflow_hops.ml.stages.performance.versions import FEWEST_OF_A_CLASS, Version

_COMPLETE = 0.9
"""Share of labelled rows from which a measurement can contradict an estimate."""
_MOST_UNKNOWN = 0.5


def notes_of(
    report: PerformanceReport, joined: Joined, versions: Mapping[int, Version], options: PerformanceOptions
) -> Iterator[str]:
    """Yields the notes on a report that people should read before they trust it."""
    yield from report.unwell
    counts = report.labels
    if counts.unknown > _MOST_UNKNOWN * (counts.joined + counts.unknown):
        yield (
            f"{counts.unknown} of {counts.joined + counts.unknown} labels are of no captured prediction: captured "
            "files are gone, only a sample is captured, or keys differ from those of the requests"
        )
    if counts.contradictory:
        yield (
            "Predictions whose labels contradict each other and became known at the same time: "
            f"{counts.contradictory}; they count as unlabelled"
        )
    if counts.future:
        default = " (the newest prediction's, as there is no as_of)" * (options.as_of_time is None)
        yield f"Labels that became known after the report's time{default}, or in the future: {counts.future}; left out"
    if counts.invalid:
        yield f"Labels that are not what the model predicts: {counts.invalid}; left out"
    if counts.keyless:
        yield f"Labels without a value of {' or '.join(options.keys)}, their keys: {counts.keyless}; left out"
    if counts.untimed:
        yield (
            "Labels without label_time, or whose label_time is not a time in seconds since the epoch: "
            f"{counts.untimed}; left out"
        )
    if joined.untimed:
        yield (
            f"Captured rows whose {options.time_feature!r} is not a time in seconds since the epoch: {joined.untimed}; "
            "left out"
        )
    if joined.ahead and options.as_of_time is None:
        yield (
            f"Predictions whose own time is more than a day after their request: {joined.ahead}; they are not "
            "measured before that time"
        )
    for column, rows in joined.lacking.items():
        yield f"Captured rows without {column!r} (another signature, API or version): {rows}; left out"
    if joined.shared:
        yield (
            f"Labelled predictions that share their label with a newer one: {joined.shared}. Intervals count labels, "
            "not predictions; figures are wrong if keys identify no prediction"
        )
    if joined.not_finite:
        yield f"Predictions that are NaN or infinite: {joined.not_finite}; left out"
    yield from (version.why for version in versions.values() if version.why)
    for each in report.versions:
        yield from _of_version(each, report, options)


def unwell(report: PerformanceReport, options: PerformanceOptions) -> Iterator[str]:
    """Yields reasons why the figures do not describe the present.

    Labels have stopped if none exist for periods older than the usual delay. If label times are unknown, that delay is
    ``label_delay``, or the greatest of ``ages``.
    """
    if not any(each.labelled for each in report.versions):
        yield "No label of a prediction in the window has come: nothing is measured"
        return
    labelled = [each.end for each in report.periods if each.labelled]
    if report.delay_s is not None:
        usual_s = report.delay_s[1]
        usual = f"95% of those that came did within {usual_s / 3600:.3g} hours"
    else:
        usual_s = options.label_delay_s or max(options.ages_s, default=0.0)
        usual = f"{'label_delay' if options.label_delay_s else 'the greatest of ages'} is {usual_s / 3600:.3g} hours"
    if not labelled or not usual_s:
        return
    last = max(datetime.fromisoformat(end) for end in labelled)
    due = datetime.fromisoformat(report.as_of) - timedelta(seconds=usual_s)
    missed = [each for each in report.periods if datetime.fromisoformat(each.start) >= last]
    overdue = sum(each.rows for each in missed if datetime.fromisoformat(each.end) <= due)
    if overdue:
        yield (
            f"Labels have stopped: none of {overdue} predictions from {last:%Y-%m-%d %H:%M} to {due:%Y-%m-%d %H:%M} "
            f"(UTC) has one, and {usual}"
        )


def _of_version(each: VersionPerformance, report: PerformanceReport, options: PerformanceOptions) -> Iterator[str]:
    if report.labels.given and not each.figures:
        yield (
            f"Version {each.version} is not measured: {each.measured} labelled predictions are old enough, "
            f"{options.min_rows} needed"
            + f", {FEWEST_OF_A_CLASS} of each class"
            * (report.problem == BINARY)
            + "; those "
            "that share a label count once"
        )
    if options.estimates and report.problem == REGRESSION:
        yield f"Version {each.version} has no estimates: they need probabilities, which a regression does not give"
    if each.labelled < _COMPLETE * each.rows:
        return
    for name, (value, low, high) in each.estimates.items():
        measured = each.figures.get(name)
        if measured is not None and name == report.metric and (measured[2] < low or measured[1] > high):
            yield (
                f"Estimates of version {each.version} are off: {name} {value:.4g} estimated, {measured[0]:.4g} "
                "measured. The label depends on the features otherwise than in training (concept drift), or the model "
                "is no longer calibrated"
            )
