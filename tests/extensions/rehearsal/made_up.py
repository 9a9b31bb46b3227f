"""Rehearsals that nothing was run for, and their files: for tests of what shows them."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta

from world import write_artifact

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.metrics import Interval
from airflow_hops.core.monitor_reports import note_report
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.rehearsal.core import rehearsal as reports

FEATURES = (
    *("dep_delay", "distance", "hour_sin", "hour_cos", "carrier", "origin", "dest", "temp", "wind_speed"),
    *("mean_departure_delay_of_the_same_carrier_within_the_last_24_hours", "visibility", "flight_number"),
)
KINDS = (
    ("shift", "sd", "shift of {} standard deviations", "covariate_shift"),
    ("missing", "share", "{} more of the values missing", "missing_rate"),
    ("another_unit", "factor", "all values times {}", "unit_change"),
)
BLIND, PAIR, WINDOWS, TRIES = "flight_number", "hour_sin and hour_cos", 30, 60
START = datetime(2013, 10, 12, tzinfo=UTC)


def made_up_rehearsal(model: str) -> reports.Rehearsal:
    """Returns a rehearsal of twelve features, one of them blind, and of forty faults."""
    faults = [_fault(place, name, kind) for place, name in enumerate(FEATURES) for kind in KINDS]
    faults += [_fault(2, PAIR, ("swapped", "share", "{} of the rows swapped", "swapped"))]
    for place, fault in enumerate(("stale_rows", "duplicated_rows", "rows_of_one_category")):
        faults.append(_fault(place + 5, "", (fault, "share", f"{{}} of the rows: {fault.replace('_', ' ')}", "")))
    return reports.Rehearsal(
        model_name=model,
        version=1,
        rows="captured",
        every_s=86400.0,
        problem="binary",
        metric="auc",
        policy={"when": {"drift": {}}},
        skew={"alpha": 0.01},
        false_alarms=_share(2, WINDOWS),
        requests=1,
        cost_core_s=3780.0,
        windows=tuple(_window(place) for place in range(WINDOWS)),
        features=tuple(sorted(map(_feature, FEATURES), key=lambda each: each.state == "compared")),
        faults=tuple(sorted(faults, key=lambda each: -(each.effect or 0))),
        notes=["made up: no monitor was rehearsed for this report", "dest: has too many values to swap them"],
    )


def write_rehearsal(store: ArtifactStore, report: reports.Rehearsal, producer: Producer) -> str:
    """Writes a report and lists it; returns the artifact's address."""
    artifact = write_artifact(store, reports.REHEARSAL, {reports.REPORT_FILE: json.dumps(report.to_dict())}, producer)
    note_report(store, report.model_name, artifact, [report.version], report.windows[-1].end, producer)
    return artifact.uri


def _share(hits: int, tries: int) -> Interval:
    share, width = hits / tries, 1.96 * math.sqrt((hits + 2) * (tries - hits + 2)) / (tries + 4) ** 1.5
    return share, max(share - width, 0.0), min(share + width, 1.0)


def _fault(place: int, feature: str, kind: tuple[str, str, str, str]) -> reports.RehearsedFault:
    fault, unit, words, cause = kind
    low, high = {"sd": (0.05, 4.0), "share": (0.01, 1.0), "factor": (1.05, 1000.0)}[unit]
    sizes = [low * (high / low) ** (step / 7) for step in range(8)]
    middle = 9.0 if feature == BLIND or (fault == "missing" and place % 4 == 1) else 1 + place % 4 + len(fault) % 3
    shares = [_share(round(TRIES / (1 + math.exp(2 * (middle - step)))), TRIES) for step in range(8)]
    reached = next((step for step, share in enumerate(shares) if share[0] >= reports.FOUND), None)
    step, is_fault = 7 if reached is None else reached, cause not in ("covariate_shift", "missing_rate", "")
    size = f"{sizes[step]:.0%}" if unit == "share" else f"{sizes[step]:.3g}"
    is_found, moved = reached is not None, 0.0003 * (place + 2) * (step + 1) ** 2
    why = "no feature drifted"
    if is_found:
        why = "the data looks faulty" if is_fault else "drift in 2 comparisons in a row"
    return reports.RehearsedFault(
        feature,
        fault,
        unit,
        sizes[step] if is_found else None,
        [sizes[max(step - 1, 0)] if step else None, sizes[step + 1] if step < 7 else None]
        if is_found
        else [None, None],
        high,
        words.format(size),
        curve=tuple(reports.PowerAtSize(each, share) for each, share in zip(sizes, shares, strict=True)),
        after=1 + place % 3 if is_found else None,
        verdict=("pipeline_fault" if is_fault else "drift") if is_found else "",
        cause=cause if is_found else "",
        retraining=is_found and not is_fault,
        why=why,
        effect=moved,
        loss=-moved / 4 if place % 3 else 0.0001,
    )


def _feature(name: str) -> reports.RehearsedFeature:
    place = FEATURES.index(name)
    state = {BLIND: "blind", "temp": "drifting", FEATURES[9]: "weak", "carrier": "loud"}.get(name, "compared")
    advice = {
        "blind": f'measures={{"{name}": "l_infinity"}}',
        "weak": f'thresholds={{"{name}": 0.06}}',
        "loud": f'thresholds={{"{name}": 0.14}}',
    }.get(state, "")
    because = "It finds a shift of 0.6 standard deviations then." if advice else "Train on newer rows first."
    hits = {"drifting": 24, "loud": 6}.get(state, 0)
    return reports.RehearsedFeature(
        name,
        _share(hits, WINDOWS),
        [0.01 * place] * WINDOWS,
        0.1,
        state,
        advice,
        because if state != "compared" else "",
    )


def _window(place: int) -> reports.RehearsedWindow:
    start, is_drift = START + timedelta(days=place), place in (11, 12)
    requested = place == 12
    reason = "drift in 2 comparisons in a row" if requested else "no feature drifted in 2 comparisons in a row"
    return reports.RehearsedWindow(
        start.isoformat(),
        (start + timedelta(days=1)).isoformat(),
        900 + 7 * place % 100,
        "drift" if is_drift else "stable",
        ("temp", "carrier") if is_drift else (),
        requested,
        reason,
    )
