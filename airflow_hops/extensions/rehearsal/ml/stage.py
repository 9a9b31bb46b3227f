"""Rehearses a monitor: plants faults into windows of its rows, and reports what it would find, and when."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.monitor_reports import monitoring_reports
from airflow_hops.core.names import check_known
from airflow_hops.core.retraining.conditions import PredictionDrift
from airflow_hops.core.retraining.performance import Performance
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.skew import STABLE, SkewOptions
from airflow_hops.core.steps.run_record import record_of
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.rehearsal.core.rehearsal import (
    REPORT_FILE,
    Rehearsal,
    RehearsalOptions,
    RehearsedFault,
    RehearsedFeature,
)
from airflow_hops.extensions.rehearsal.ml.advice import Adviser
from airflow_hops.extensions.rehearsal.ml.effects import Effects
from airflow_hops.extensions.rehearsal.ml.faults import Fault, faults_of, faults_of_rows, together
from airflow_hops.extensions.rehearsal.ml.labels import rehearse_labels
from airflow_hops.extensions.rehearsal.ml.said import Monitor
from airflow_hops.extensions.rehearsal.ml.search import FaultFound, Rehearsing, share_of
from airflow_hops.extensions.rehearsal.ml.windows import WindowPool, read_windows
from airflow_hops.ml.skew.plan import trained_champion
from airflow_hops.ml.skew.trained import Trained
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

_READ, _SEARCHED = 0.1, 0.8
"""Shares of the progress when windows are read, and when faults are searched."""
_SLOW = 28
_DAY_S = 86_400.0
_ORDER = ("blind", "weak", "loud", "drifting", "compared")


def run(context: StepContext, **options: Any) -> Artifact:
    """Plants faults into copies of a model's rows, and writes what its monitor would say of them.

    Nothing is changed but the step's own artifact ``rehearsal``.

    Args:
        context: Step with the service ``serving_capture_path``, or the input ``captured``, a snapshot of captured rows.
        options: Fields of :class:`~airflow_hops.extensions.rehearsal.core.rehearsal.RehearsalOptions`.

    Raises:
        BadInput: no version serves, its statistics were deleted, there are too few rows, a feature is not compared, or
            an option is out of range.
    """
    values = RehearsalOptions(**options)
    store = context.store
    notes = list[str]()
    skew = _skew_options(store, values, notes)
    policy = RetrainingPolicy() if values.policy is None else RetrainingPolicy.from_dict(values.policy)
    champion, trained = trained_champion(store, values.model_name, skew.split)
    for name in values.features or ():
        check_known("features", name, trained.types)
    context.progress(0.0, "reading windows")
    pool = read_windows(context, trained, skew, values)
    with context.output() as writer:
        report = rehearse(context, trained, pool, skew, policy, values)
        report = replace(report, notes=[*notes, *report.notes])
        text = json.dumps(report.to_dict(), indent=1, allow_nan=False)
        (writer.path / REPORT_FILE).write_text(text)
        for note in report.notes:
            log.warning("%s", note)
        rows = sum(window.rows for window in pool.windows)
        blind = [each.name for each in report.features if each.state == "blind"]
        return writer.commit(
            rows={"windows": RowCounts(rows, rows)},
            metrics={"faults": len(report.faults), "found": sum(each.size is not None for each in report.faults)},
            properties={
                "model_name": values.model_name,
                "version": champion.version,
                "blind": blind,
                "false_alarms": report.false_alarms[0],
            },
        )


def rehearse(
    context: StepContext,
    trained: Trained,
    pool: WindowPool,
    skew: SkewOptions,
    policy: RetrainingPolicy,
    options: RehearsalOptions,
) -> Rehearsal:
    """Returns the report on a pool of windows."""
    names = [name for name in trained.types if options.features is None or name in options.features]
    context.progress(_READ, f"comparing {len(pool.windows)} windows")
    rehearsing = Rehearsing(trained, pool, skew, options.tries, options.seed)
    tries = rehearsing.tries[: len(pool.windows)]
    often = [name for name in names if 2 * sum(name in one.drifted for one in tries) > len(tries)]
    quiet = [name for name in names if name not in often and name in rehearsing.prepared.thresholds]
    faults = faults_of(rehearsing.reference, quiet)
    if options.features is None:
        compared = [name for name in trained.types if name in rehearsing.prepared.thresholds]
        faults += faults_of_rows(compared, rehearsing.reference)
    words = f"planting {len(faults)} faults into {options.tries} windows"
    context.progress(_READ, words)
    searched = rehearsing.search(faults, lambda share: context.progress(_READ + (_SEARCHED - _READ) * share, words))
    effects = Effects(trained, pool.windows[-1].sample)
    pairs = _pairs(searched, effects)
    searched += rehearsing.search(pairs, lambda share: None)
    monitor = Monitor(trained, policy, pool.windows, tries, pool.every_s)
    reported = []
    for number, each in enumerate(searched):
        reported.append(_reported(each, effects, monitor))
        context.progress(_SEARCHED + 0.1 * (number + 1) / len(searched), "measuring what slips through")
    reported += _slow(searched, reported, effects, pool.every_s)
    reported += rehearse_labels(effects, monitor, policy, options, pool)
    adviser = Adviser(trained, pool, skew, rehearsing, effects, options.seed)
    features = list[RehearsedFeature]()
    inputs = ModelProperties.of(trained.model).features or () if options.features is None else ()
    names += [name for name in inputs if name not in trained.types]
    for number, name in enumerate(names):
        own = [each for each in searched if each.fault.features[:1] == (name,) and len(each.fault.features) == 1]
        features.append(adviser.feature(name, own))
        context.progress(0.9 + 0.1 * (number + 1) / len(names), "looking for better thresholds")
    windows = monitor.unchanged()
    alarms = sum(window.verdict != STABLE for window in windows)
    return Rehearsal(
        model_name=options.model_name,
        version=int(trained.origin.version or 0),
        rows=pool.kind,
        every_s=pool.every_s,
        problem=effects.problem,
        metric=effects.metric,
        policy=policy.to_dict(),
        skew=skew.to_dict(),
        false_alarms=share_of(alarms, len(windows)),
        requests=sum(window.requested for window in windows),
        cost_core_s=_cost(trained),
        windows=tuple(windows),
        features=tuple(sorted(features, key=lambda each: _ORDER.index(each.state))),
        faults=tuple(sorted(reported, key=_by_what_slips_through)),
        notes=[*effects.notes, *_notes(pool, often, policy)],
    )


def _skew_options(store: ArtifactStore, values: RehearsalOptions, notes: list[str]) -> SkewOptions:
    """Returns the options of the monitor: the ones given, or else those of its newest recorded run."""
    known, own = {each.name for each in fields(SkewOptions)}, values.skew
    if own is not None:
        for name in own:
            check_known("skew", name, known)
        return SkewOptions(**{**own, "model_name": values.model_name})
    for report in monitoring_reports(store, values.model_name, "skew"):
        with suppress(BadInput):  # of a run that was removed
            if record := record_of(store, store.manifest(report.uri)):
                return SkewOptions(**{name: value for name, value in record.params.items() if name in known})
    notes.append(
        "No recorded comparison of this model was found, so that the monitor's defaults are rehearsed; give the "
        "arguments of its SkewOperator as skew"
    )
    return SkewOptions(model_name=values.model_name)


def _reported(found: FaultFound, effects: Effects, monitor: Monitor) -> RehearsedFault:
    """Returns what is reported of a fault."""
    fault, (smallest, interval) = found.fault, found.smallest()
    size = fault.sizes[-1] if smallest is None else smallest
    effect, loss = effects.of(fault, size)
    decided = monitor.of(found, size, effect)
    return RehearsedFault(
        feature=_name_of(fault),
        fault=fault.kind,
        unit=fault.unit,
        size=smallest,
        interval=list(interval),
        largest=fault.sizes[-1],
        words=fault.described(size),
        fault_from=found.fault_from(),
        curve=found.curve(),
        after=decided.after if smallest is not None else None,
        verdict=decided.verdict,
        cause=decided.cause,
        retraining=decided.retraining and smallest is not None,
        why=decided.why,
        effect=_short(effect),
        loss=_short(loss),
    )


def _by_what_slips_through(fault: RehearsedFault) -> tuple[bool, float, bool]:
    """Sorts faults that are never found and whose effect is not known first, then by effect."""
    return fault.size is not None or fault.effect is not None, -(fault.effect or 0.0), fault.size is not None


def _name_of(fault: Fault) -> str:
    return " and ".join(fault.features) if fault.kind in ("shift", "missing") else "".join(fault.features[:1])


def _pairs(found: Sequence[FaultFound], effects: Effects) -> list[Fault]:
    """Returns two faults at once: shifts of the two features that move predictions most."""
    shifts = [each.fault for each in found if each.fault.kind == "shift"]
    moved = sorted(shifts, key=lambda fault: -(effects.of(fault, 1.0)[0] or 0.0))
    return [together(*moved[:2])] if len(moved) > 1 else []


def _slow(
    found: Sequence[FaultFound], reported: Sequence[RehearsedFault], effects: Effects, every_s: float
) -> list[RehearsedFault]:
    """Returns slow drift: shifts that grow to one standard deviation in four weeks, and where they are found."""
    result = []
    weeks = max(1, round(_SLOW * _DAY_S / every_s))
    for each, one in zip(found, reported, strict=True):
        if each.fault.kind != "shift" or len(each.fault.features) > 1:
            continue
        sizes = np.array([*each.fault.sizes, np.inf])[each.places]
        steps = np.ceil(sizes * weeks)
        after = np.sort(steps)[max(0, int(np.ceil(0.8 * len(steps))) - 1)]
        is_found = bool(np.isfinite(after) and after <= weeks)
        size = float(after / weeks) if is_found else 1.0
        effect, loss = effects.of(each.fault, size)
        result.append(
            replace(
                one,
                fault="slow_drift",
                size=float(f"{size:.3g}") if is_found else None,
                interval=[None, None],
                largest=1.0,
                words=f"{each.fault.described(size)}, by a drift of one in four weeks",
                curve=(),
                after=int(after) if is_found else None,
                effect=_short(effect),
                loss=_short(loss),
            )
        )
    return result


def _cost(trained: Trained) -> float | None:
    """Returns the CPU seconds of the artifacts of the run that made the model; None if it was removed."""
    store = trained.store
    with suppress(BadInput):
        by = store.manifest(trained.model.uri).producer
        costs = [store.manifest(uri).cost for uri in store.artifacts(store.uri(by.dag_id, by.run_id))]
        return round(sum(each.get("core_s", 0.0) for each in costs), 1)
    return None


def _notes(pool: WindowPool, often: Sequence[str], policy: RetrainingPolicy) -> list[str]:
    notes = []
    if pool.kind == "training":
        notes.append(
            "There are too few captured rows: the windows are held-out rows of the training, which differ less from it "
            "than requests do"
        )
    if len(pool.windows) < 14:
        notes.append(f"{len(pool.windows)} windows, whose rows further tries share: intervals are too narrow")
    if often:
        notes.append(f"No faults were planted into {', '.join(often)}: drifted in most of the unchanged windows")
    kinds = {leaf.kind for leaf in policy.when.leaves()}
    if Performance.kind not in kinds:
        notes.append("The policy does not watch the performance: a change of the labels alone is not found")
    if PredictionDrift.kind in kinds:
        notes.append("Predictions of planted rows are not compared: what PredictionDrift would find is not rehearsed")
    return notes


def _short(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(f"{value:.4g}")
