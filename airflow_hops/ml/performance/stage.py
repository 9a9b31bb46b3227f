"""Measures served predictions after their labels have arrived."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow.compute as pc

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.artifacts.target import BINARY, REGRESSION
from airflow_hops.core.errors import BadInput, ModelNotFound
from airflow_hops.core.models.model_record import read_record
from airflow_hops.core.performance import (
    REPORT_FILE,
    LabelAge,
    PerformanceOptions,
    PerformanceReport,
    VersionPerformance,
)
from airflow_hops.ml.captured.snapshot import captured_requests
from airflow_hops.ml.captured.values import as_number, class_numbers
from airflow_hops.ml.metrics.judging import METRICS
from airflow_hops.ml.performance.join import Joined, Predictions, join_labels
from airflow_hops.ml.performance.labels import KNOWN_AT, NO_LABEL, Labels, check_key_types, one_for_each, read_labels
from airflow_hops.ml.performance.versions import (
    FEWEST_OF_A_CLASS,
    US,
    Version,
    as_iso,
    find_version,
    measure_periods,
    measure_whole,
)
from airflow_hops.ml.step.context import StepContext

# What is known at `as_of`: predictions made before it, and labels that became known before it. Without an option,
# `as_of` is the newest time of the captured rows, which is only known after the join; labels that are newer than it are
# then dropped, and the join is repeated. A rerun with the same inputs and options gives the same report.

log = logging.getLogger(__name__)
_DELAYS = (0.5, 0.95)


def run(context: StepContext, **options: Any) -> Artifact:
    """Joins captured predictions with labels, and measures each version by period and over the window.

    Args:
        context: Step with the service ``serving_capture_path`` or the input ``captured``, a snapshot of captured rows;
            the service ``tracking_uri``; and the optional input ``labels``, an artifact.
        options: Fields of :class:`airflow_hops.core.performance.PerformanceOptions`.

    Raises:
        BadInput: nothing was captured, or nothing in the window; labels or captured rows lack a column; or no label is
            a class of the model.
    """
    arguments = PerformanceOptions(**options)
    champion = read_record(context.store, arguments.model_name).champion
    if champion is None:
        raise ModelNotFound(arguments.model_name, "champion").with_text(
            f"model_name is {arguments.model_name!r}, which has no champion; deploy one first"
        )
    known, prefix = _of_label(ModelProperties.of(champion.model), arguments.label)
    target = known.target
    requests = captured_requests(context, arguments.model_name)
    name = arguments.label_column or target.label
    table, left_out = read_labels(context, arguments, requests, name)
    check_key_types(table, requests, arguments.keys)
    labels = one_for_each(table, arguments.keys, arguments.as_of_time, left_out, arguments.horizon_s)
    joined = join_labels(requests, labels, arguments, target.problem, prefix)
    as_of_us, window = _window(joined, arguments)
    as_of = datetime.fromtimestamp(as_of_us / US, UTC)
    if (
        arguments.as_of_time is None
        and KNOWN_AT in table.column_names
        and (pc.max(table[KNOWN_AT]).as_py() or as_of) > as_of
    ):
        # Labels after the present do not count, and the present is known only now.
        labels = one_for_each(table, arguments.keys, as_of, left_out, arguments.horizon_s)
        joined = join_labels(requests, labels, arguments, target.problem, prefix)
        as_of_us, window = _window(joined, arguments)
    versions = {number: find_version(context.store, arguments.model_name, number, known, prefix) for number in window}
    rows, invalid = _labelled(labels, versions, window, name)
    start_us = min(int(each.time_us.min()) for each in window.values())
    if arguments.window_s is not None:
        start_us = as_of_us - int(arguments.window_s * US)
    measured_files = [name for name, (first, last) in joined.files.items() if first < as_of_us and last >= start_us]
    report = PerformanceReport(
        model_name=arguments.model_name,
        problem=target.problem,
        metric=METRICS[target.problem].metric,
        label=name,
        as_of=as_iso(as_of_us),
        versions=tuple(
            measure_whole(arguments, as_of_us, versions[number], rows[number], start_us) for number in window
        ),
        labels=replace(joined.counts, invalid=invalid),
        periods=tuple(
            each for number in window for each in measure_periods(arguments, as_of_us, versions[number], rows[number])
        ),
        ages=tuple(_ages(window, as_of_us, arguments)),
        delay_s=_delays(joined.versions),
        captured_files=None if context.has_input("captured") else (measured_files[0], measured_files[-1]),
    )
    report = replace(report, unwell=tuple(unwell(report, arguments)))
    report = replace(report, notes=tuple(notes_of(report, joined, versions, arguments)))
    return _write(context, report, champion.version)


def _of_label(known: ModelProperties, label: str | None) -> tuple[ModelProperties, str]:
    """Returns the champion's properties for one label, and the prefix of that label's outputs."""
    target = known.target
    if label is None or label == target.label:
        return known, ""
    if label not in (more := [each.label for each in target.more]):
        raise BadInput(f"of_label is {label!r}; the champion predicts {', '.join(map(repr, [target.label, *more]))}")
    return known.of_label(label), target.output_prefix(label)


def _window(joined: Joined, options: PerformanceOptions) -> tuple[int, dict[int, Predictions]]:
    """Returns the window's end in microseconds, and its predictions by version; raises BadInput if it is empty."""
    if not joined.versions:
        raise BadInput(f"no request of model {options.model_name!r} was captured yet")
    earliest = min(int(each.time_us.min()) for each in joined.versions.values())
    newest = max(int(each.time_us.max()) for each in joined.versions.values())
    as_of = options.as_of_time
    as_of_us = (joined.present_us // US + 1) * US if as_of is None else int(as_of.timestamp() * US)
    start_us = earliest if options.window_s is None else as_of_us - int(options.window_s * US)
    window = {}
    for number, each in joined.versions.items():
        chosen = (each.time_us >= start_us) & (each.time_us < as_of_us)
        if chosen.any():
            window[number] = each.where(chosen)
    if not window:
        raise BadInput(
            f"no captured prediction of model {options.model_name!r} is from {as_iso(start_us)} to "
            f"{as_iso(as_of_us)}; the captured ones are from {as_iso(earliest)} to {as_iso(newest)}: check that the "
            "server captures requests, and check time_feature, as_of and window"
        )
    return as_of_us, window


def _labelled(
    labels: Labels, versions: Mapping[int, Version], window: Mapping[int, Predictions], name: str
) -> tuple[dict[int, Predictions], int]:
    """Returns predictions by version with numeric labels, and the number of unusable labels."""
    result, total, wrong, expected = {}, 0, [], ""
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
        rows = window[number]
        has_label = rows.labels != NO_LABEL
        used = rows.labels[has_label]
        values = np.full(len(rows.labels), np.nan)
        values[has_label] = numbers[used]
        result[number] = replace(rows, labels=values)
        total += len(used)
        wrong.append(used[np.isnan(numbers[used])])
    invalid = sum(map(len, wrong))
    if total and invalid == total:
        example = labels.values[np.concatenate(wrong)[0]]
        raise BadInput(f"label {name!r}: none of {total} labels is usable, such as {example!r}; expected {expected}")
    return result, invalid


def _ages(window: Mapping[int, Predictions], as_of_us: int, options: PerformanceOptions) -> Iterator[LabelAge]:
    age_s = np.concatenate([(as_of_us - each.time_us) / US for each in window.values()])
    has_label = np.concatenate([each.labels != NO_LABEL for each in window.values()])
    for low, high in zip((0.0, *options.ages_s), (*options.ages_s, None), strict=True):
        chosen = (age_s >= low) & (age_s < (np.inf if high is None else high))
        if chosen.any():
            yield LabelAge(low, high, int(chosen.sum()), int((chosen & has_label).sum()))


def _delays(versions: Mapping[int, Predictions]) -> tuple[float, float] | None:
    """Returns the median and 95% quantile of the delays of the labels so far."""
    delays = np.concatenate([d[d >= 0] for each in versions.values() if (d := each.delay_us) is not None])
    if not len(delays):
        return None
    low, high = np.quantile(delays / US, _DELAYS)
    return float(low), float(high)


def _write(context: StepContext, report: PerformanceReport, champion: int) -> Artifact:
    for each in report.versions:
        figures = ", ".join(
            f"{name} {v:.4g} ({low:.4g} to {high:.4g})" for name, (v, low, high) in each.figures.items()
        )
        log.info(
            "Version %d: %d of %d predictions have labels; %s", each.version, each.labelled, each.rows, figures or "-"
        )
        for name, (drop, low, high) in (each.drop or {}).items():
            log.info(
                "Version %d: %s is worse than at training by %.4g (%.4g to %.4g)", each.version, name, drop, low, high
            )
    for note in report.notes:
        log.warning("%s", note)
    rows = sum(each.rows for each in report.versions)
    labelled = sum(each.labelled for each in report.versions)
    reports = report.of_version(champion) or max(report.versions, key=lambda each: each.rows)
    with context.output() as writer:
        (writer.path / REPORT_FILE).write_text(json.dumps(report.to_dict(), indent=1, allow_nan=False))
        return writer.commit(
            rows={"predictions": RowCounts(rows, labelled, {"no label": rows - labelled} if rows > labelled else {})},
            metrics={
                "rows": rows,
                "labelled": labelled,
                **{name: value for name, (value, _, _) in reports.figures.items()},
                **{f"estimated_{name}": value for name, (value, _, _) in reports.estimates.items()},
            },
            properties=report.properties.to_dict(),
        )


_COMPLETE = 0.9
"""Minimum share of labelled rows for a measurement to contradict an estimate."""
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
    default = " (the newest prediction's, as there is no as_of)" * (options.as_of_time is None)
    left_out = {
        f"Labels that became known after the report's time{default}, or in the future": counts.future,
        "Labels that are not what the model predicts": counts.invalid,
        f"Labels without a value of {' or '.join(options.keys)}, their keys": counts.keyless,
        "Labels without a value": counts.missing,
        "Labels that became known before each prediction of their key": counts.early * (options.horizon_s is not None),
        "Labels that became known after the horizon of each prediction of their key": counts.late,
        "Labels without label_time, or whose label_time is not a time in seconds since the epoch": counts.untimed,
        f"Captured rows whose {options.time_feature!r} is not a time in seconds since the epoch": joined.untimed,
        **{f"Captured rows without {c!r} (another signature, API or version)": n for c, n in joined.lacking.items()},
        "Predictions that are NaN or infinite": joined.not_finite,
    }
    yield from (f"{what}: {count}; left out" for what, count in left_out.items() if count)
    if counts.early and options.horizon_s is None:
        yield (
            f"Labels that became known before their predictions: {counts.early}; they count, as there is no horizon. "
            "Figures are wrong if keys identify no prediction"
        )
    if joined.ahead and options.as_of_time is None:
        yield (
            f"Predictions whose own time is more than a day after their request: {joined.ahead}; they are not "
            "measured before that time"
        )
    if joined.shared:
        yield (
            f"Labelled predictions that share their label with a newer one: {joined.shared}. Intervals count labels, "
            "not predictions; figures are wrong if keys identify no prediction"
        )
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
    if not labelled or (report.delay_s is None and not usual_s):
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
            + f", {FEWEST_OF_A_CLASS} of each class" * (report.problem == BINARY)
            + "; those that share a label count once"
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
