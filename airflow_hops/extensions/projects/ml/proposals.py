"""Proposes a minimum for models, and a split of the newest rows."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.target import BINARY, Target

_LEAST_R2 = 0.1
_LEAST_AUC = 0.6
_MOST_CLASSES_WITH_AUC = 100
RARE = 0.1
_HELD_OUT, _Z_95 = 0.2, 1.96
_LIFT = 2
_NEWEST_SHARE, _MOST_NEWEST = 0.1, 0.3
_FEWEST_NEWEST_ROWS = 100
_DAY_S = 86400


def with_rare_class_last(target: Target, counts: Counter[Any] | None) -> Target:
    """Returns a target of two named classes so that the model gives the probability of the second, if one is rare."""
    if (
        target.problem != BINARY
        or not target.classes
        or not counts
        or counts[target.classes[0]] >= RARE * counts.total()
    ):
        return target
    return replace(target, classes=target.classes[::-1])


def propose_minimum(counts: Counter[Any] | None, positive: Any = None) -> dict[str, float]:
    """Returns minimums by metric, which a model that always predicts the label's distribution hardly reaches.

    There is none for the accuracy: where most rows are of one class, a good model has hardly more than a guess.

    Args:
        counts: Rows by value of the label; None for a regression.
        positive: Of two values the one whose probability a model gives; None for the greater.
    """
    if counts is None:
        return {"r2": _LEAST_R2}
    shares = {name: count / counts.total() for name, count in counts.items()}
    # A model that guesses the shares has their entropy as its log loss, but for the chance of the held-out rows; an
    # overconfident one has more.
    losses = np.repeat([-math.log(share) for share in shares.values()], list(counts.values()))
    by_chance = _Z_95 * float(losses.std()) / math.sqrt(_HELD_OUT * len(losses))
    log_loss = {"log_loss": round(float(losses.mean()) + by_chance, 3)}
    if len(counts) > 2:
        every_class = {"auc": _LEAST_AUC, "worst_auc": _LEAST_AUC} if len(counts) <= _MOST_CLASSES_WITH_AUC else {}
        return {**every_class, **log_loss}
    share = shares[max(shares) if positive is None else positive]
    # A random model's average precision is the share of positives; the AUC is insensitive to rare classes.
    rare = {"average_precision": float(f"{_LIFT * share:.2g}")} if share < RARE else {}
    return {"auc": _LEAST_AUC, **rare, **log_loss}


def propose_newest_s(times: pa.ChunkedArray, label: pa.ChunkedArray, is_class: bool) -> int | None:
    """Returns the duration of about the last tenth of the labelled rows in seconds, rounded up to days or minutes.

    Rows without a label, such as those whose label comes late, are not trained on. None if the last rows are too few or
    too many, or the others lack a class. Times are timestamps, dates, or seconds since the epoch.
    """
    has_label = pc.is_valid(label)
    times, label = times.filter(has_label), label.filter(has_label)
    if pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("s"))
    if pa.types.is_timestamp(times.type):
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[times.type.unit]
        times = pc.divide(times.cast(pa.int64()).cast(pa.float64(), safe=False), per_second)
    seconds = times.cast(pa.float64(), safe=False).fill_null(math.nan).to_numpy()
    dated = seconds[np.isfinite(seconds)]
    if not len(dated):
        return None
    wanted = dated.max() - np.quantile(dated, 1 - _NEWEST_SHARE)
    unit = _DAY_S if wanted >= _DAY_S else 60
    newest_s = int(max(1, math.ceil(wanted / unit)) * unit)
    is_newest = seconds >= dated.max() - newest_s
    if not _FEWEST_NEWEST_ROWS <= is_newest.sum() <= _MOST_NEWEST * len(dated):
        return None
    earlier = label.filter(pa.array(~is_newest))
    if is_class and len(pc.unique(earlier.drop_null())) < len(pc.unique(label.drop_null())):
        return None
    return newest_s
