"""Entries of a fleet's index after a training: a new model, the one before, or none; and the account of all."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from airflow_hops.extensions.fleet.core.options import FleetOutcomes
from airflow_hops.extensions.fleet.core.packs import POOLED
from airflow_hops.extensions.fleet.ml.fleet_files import OpenFleet

_VANISHED = "no rows in this run; "
_NEVER = {"loss": None, "pooled_loss": None, "eval_rows": 0, "eval_loss": None, "eval_pooled_loss": None}

log = logging.getLogger(__name__)


@dataclass
class Entries:
    """Entries of the index and their models, asked for one after the other in the order of keys.

    Attributes:
        earlier: The fleet before.
        results: Results of the trained segments, by key.
        wanted: The trained segments.
        fingerprints: Fingerprints of the segments that have rows.
        is_kept: Whether the encoding is that of the fleet before, so that its models can be used.
        trained_by: The run.
        reference: Gets the rows of the reference.
    """

    earlier: OpenFleet | None
    results: Iterator[dict[str, Any]]
    wanted: AbstractSet[str]
    fingerprints: Mapping[str, str]
    is_kept: bool
    trained_by: str
    reference: list[Mapping[str, Any]] = field(default_factory=list)

    def of(self, segment: str) -> tuple[Mapping[str, Any], bytes | None]:
        """Returns the entry of a segment, and its model."""
        earlier = self.earlier
        entry = None if earlier is None else earlier.entries.get(segment)
        if segment in self.wanted:
            return self._trained(segment, entry)
        if earlier is None or entry is None:
            reason = "not among the segments to train"
            return {"segment": segment, "state": POOLED, "reason": reason, "rows": 0, **_NEVER}, None
        if segment in earlier.reference:
            self.reference.append(earlier.reference[segment])
        has_rows, reason = segment in self.fingerprints, entry["reason"].removeprefix(_VANISHED)
        if has_rows or self.is_kept:
            return {**entry, "reason": reason if has_rows else _VANISHED + reason}, earlier.payload(entry)
        reason = f"{_VANISHED}and all models were trained again"
        # Without a fingerprint, so that a run in which the rows are back trains it.
        return {**entry, "state": POOLED, "reason": reason, "fingerprint": None, **_NEVER}, None

    def _trained(self, segment: str, entry: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], bytes | None]:
        result = next(self.results)
        assert result["segment"] == segment
        self.reference.append(result)
        payload: bytes | None = result.pop("payload")
        refused = None if entry is None else entry["refused"]
        own = {**result, "fingerprint": self.fingerprints[segment], "trained_by": self.trained_by, "refused": refused}
        if result["failed"] and entry is not None and self.earlier is not None and self.is_kept:
            own |= {name: entry[name] for name in ("state", "format", "loss", "pooled_loss", "trained_by")}
            own["reason"] = f"{result['reason']}; the model before stays"
            return own, self.earlier.payload(entry)
        return own, payload


def deciles(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns mean losses of the evaluation by tenth of the segments, from those with the fewest training rows.

    >>> entry = {"segment": "a", "rows": 9, "eval_rows": 2, "eval_loss": 1.0, "eval_pooled_loss": 3.0}
    >>> deciles([entry])
    [{'segments': 1, 'rows': 9, 'eval_rows': 2, 'loss': 1.0, 'pooled_loss': 3.0}]
    """
    known = [row for row in rows if row["eval_rows"] and row["eval_loss"] is not None]
    known.sort(key=lambda row: (row["rows"], row["segment"]))
    tenths = []
    for numbers in np.array_split(np.arange(len(known)), 10):
        if len(numbers):
            own = [known[number] for number in numbers]
            weights = [row["eval_rows"] for row in own]
            tenths.append(
                {
                    "segments": len(own),
                    "rows": sum(row["rows"] for row in own),
                    "eval_rows": sum(weights),
                    "loss": float(np.average([row["eval_loss"] for row in own], weights=weights)),
                    "pooled_loss": float(np.average([row["eval_pooled_loss"] for row in own], weights=weights)),
                }
            )
    return tenths


def metrics_of(outcomes: FleetOutcomes, entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the metrics of the artifact."""
    counts = {name: float(getattr(outcomes, name)) for name in ("segments", "trained", "reused", "failed")}
    known = [row for row in entries if row["eval_rows"] and row["eval_loss"] is not None]
    rows = sum(row["eval_rows"] for row in known)
    for name in ("loss", "pooled_loss") if rows else ():
        value = sum(row["eval_rows"] * row[f"eval_{name}"] for row in known) / rows
        counts |= {f"eval_{name}": value} if math.isfinite(value) else {}
    return {**counts, **{state: float(count) for state, count in outcomes.states.items()}}


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
