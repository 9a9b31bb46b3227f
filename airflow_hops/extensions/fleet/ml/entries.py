"""Segments after a training: with a new model, the one before, or none; and the account of all."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from airflow_hops.extensions.fleet.core.options import FleetOutcomes
from airflow_hops.extensions.fleet.core.packs import POOLED, Entry
from airflow_hops.extensions.fleet.ml.fleet_files import OpenFleet, Segment

_LOSSES = ("loss", "pooled_loss")
_VANISHED = "no rows in this run; "
_NEVER = {"eval_rows": 0, "eval_loss": None, "eval_pooled_loss": None, "loss": None, "pooled_loss": None}

log = logging.getLogger(__name__)


def segments_after(
    earlier: OpenFleet | None,
    results: Iterator[dict[str, Any]],
    wanted: AbstractSet[str],
    fingerprints: Mapping[str, str],
    is_kept: bool,
    trained_by: str,
) -> Iterator[Segment]:
    """Yields the segments after a training, sorted by key.

    Args:
        earlier: The fleet before.
        results: Results of the trained segments, sorted by key.
        wanted: The trained segments.
        fingerprints: Fingerprints of the segments that have rows.
        is_kept: Whether the encoding is that of the fleet before, so that its models can be used.
        trained_by: The run.
    """
    entries = {} if earlier is None else earlier.entries
    for key in sorted({*fingerprints, *entries}, key=str.encode):
        entry, model, statistics = (None, None, None) if earlier is None or key not in entries else earlier.segment(key)
        if key in wanted:
            result = next(results)
            assert result["segment"] == key
            trained, statistics = result.pop("model"), result.pop("statistics") or statistics
            refused = None if entry is None else entry["refused"]
            own = {**result, "fingerprint": fingerprints[key], "trained_by": trained_by, "refused": refused}
            if (result["failed"] or not result["rows"]) and entry is not None and is_kept:
                own |= {name: entry[name] for name in ("state", "loss", "pooled_loss", "trained_by")}
                own["reason"] = f"{result['reason']}; the model before stays"
            else:
                model = trained
            yield own, model, statistics
        elif entry is None:
            reason = "not among the segments to train"
            yield {"segment": key, "state": POOLED, "reason": reason, "rows": 0, **_NEVER}, None, None
        else:
            reason = entry["reason"].removeprefix(_VANISHED)
            if key not in fingerprints:
                reason = _VANISHED + reason
                if not is_kept:
                    reason, model = f"{_VANISHED}and all models were trained again", None
                    # Without a fingerprint, so that a run in which the rows are back trains it.
                    entry = {**entry, "state": POOLED, "fingerprint": None, **_NEVER}
            yield {**entry, "reason": reason}, model, statistics


def outcomes_of(column: str, index: Sequence[Entry], previous: OpenFleet | None, **counts: Any) -> FleetOutcomes:
    """Returns the account of an index; ``counts`` are further fields."""
    assert len(index) == sum(counts.get(name, 0) for name in ("trained", "reused", "vanished")), "a segment is lost"
    return FleetOutcomes(
        segment=column,
        segments=len(index),
        states=dict(sorted(Counter(entry["state"] for entry in index).items())),
        failed=sum(bool(entry["failed"]) for entry in index),
        previous=None if previous is None else previous.artifact.uri,
        deciles=deciles(index),
        **counts,
    )


def deciles(rows: Sequence[Entry]) -> list[dict[str, Any]]:
    """Returns mean losses of the evaluation by tenth of the segments, from those with the fewest training rows.

    >>> entry = {"segment": "a", "rows": 9, "eval_rows": 2, "eval_loss": 1.0, "eval_pooled_loss": 3.0}
    >>> deciles([entry])
    [{'segments': 1, 'rows': 9, 'eval_rows': 2, 'loss': 1.0, 'pooled_loss': 3.0}]
    """
    known = sorted(_evaluated(rows), key=lambda row: (row["rows"], row["segment"]))
    tenths = np.array_split(np.arange(len(known)), 10)
    return [_losses([known[number] for number in numbers]) for numbers in tenths if len(numbers)]


def _evaluated(rows: Sequence[Entry]) -> list[Entry]:
    return [row for row in rows if row["eval_rows"] and row["eval_loss"] is not None]


def _losses(rows: Sequence[Entry]) -> dict[str, Any]:
    weights = [row["eval_rows"] for row in rows]
    means = {name: np.average([row[f"eval_{name}"] for row in rows], weights=weights) for name in _LOSSES}
    counts = {"segments": len(rows), "rows": sum(row["rows"] for row in rows), "eval_rows": sum(weights)}
    return {**counts, **{name: float(mean) for name, mean in means.items()}}


def metrics_of(outcomes: FleetOutcomes, rows: Sequence[Entry]) -> dict[str, float]:
    """Returns the metrics of the artifact."""
    metrics = {name: float(getattr(outcomes, name)) for name in ("segments", "trained", "reused", "failed")}
    if known := _evaluated(rows):
        losses = _losses(known)
        metrics |= {f"eval_{name}": losses[name] for name in _LOSSES}
    return {**metrics, **{state: float(count) for state, count in outcomes.states.items()}}


def log_outcomes(outcomes: FleetOutcomes) -> None:
    """Logs what became of the segments, and the losses by tenth of them."""
    states = ", ".join(f"{count:,} {state}" for state, count in outcomes.states.items())
    log.info(
        "%s segments: %s; %s trained, %s reused, %s failed, %s new, %s without rows",
        *(f"{outcomes.segments:,}", states),
        *(f"{n:,}" for n in (outcomes.trained, outcomes.reused, outcomes.failed, outcomes.appeared, outcomes.vanished)),
    )
    for number, tenth in enumerate(outcomes.deciles, 1):
        log.info(
            "Tenth %d of the segments by rows (%d segments, %s rows): loss %.5g, pooled alone %.5g",
            *(number, tenth["segments"], f"{tenth['rows']:,}", tenth["loss"], tenth["pooled_loss"]),
        )
