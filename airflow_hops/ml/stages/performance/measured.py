"""Measured quality of a version's predictions, for rows of any origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from airflow_hops.core.contract.performance import Interval, PerformanceOptions, VersionPerformance, worse_by
from airflow_hops.core.contract.target import BINARY
from airflow_hops.ml.metrics.judging import Judge
from airflow_hops.ml.metrics.metrics import Array
from airflow_hops.ml.stages.performance.figures import measure
from airflow_hops.ml.stages.performance.versions import Version

US = 1_000_000
FEWEST_OF_A_CLASS = 10
"""Rows of each of two classes below which an interval of 95% is none: of the AUC of 100 rows, one positive, 39%."""


@dataclass(frozen=True)
class LabelledRows:
    """Predictions of a version, and what is known of them.

    Attributes:
        time_us: Microseconds since the epoch, shape ``[rows]``.
        outputs: Shape ``[rows]``, or of several classes ``[rows, classes]``.
        labels: Numbers of the version's classes, or values; NaN without a usable one. Shape ``[rows]``.
        shared: Number of the label itself, by which rows that share one are told, shape ``[rows]``; None if each has
            its own.
    """

    time_us: Array
    outputs: Array
    labels: Array
    shared: Array | None = None

    def where(self, chosen: Array | slice) -> LabelledRows:
        """Those that are chosen, by truth value, number or slice."""
        return replace(self, **{name: of[chosen] for name, of in vars(self).items() if of is not None})


class Measurement:
    """Measures versions, as it was possible at a time.

    Args:
        options: How; of them ``min_rows``, ``label_delay_s``, ``period_s`` and ``estimates`` count.
        as_of_us: The time.
    """

    def __init__(self, options: PerformanceOptions, as_of_us: int) -> None:
        self._options, self._as_of_us = options, as_of_us

    def whole(
        self, version: Version, rows: LabelledRows, start_us: int, estimates: Mapping[str, Interval] | None = None
    ) -> VersionPerformance:
        """A version over the whole window.

        Args:
            version: The version.
            rows: Its predictions in the window.
            start_us: Start of the window.
            estimates: Those of the same predictions, where they are known already.
        """
        result = self._measure(version, rows, start_us, self._as_of_us, estimates)
        both = [name for name in result.figures if name in version.baseline]
        drop = {name: worse_by(name, result.figures[name], version.baseline[name]) for name in both}
        return replace(result, baseline=dict(version.baseline), drop=drop)

    def periods(self, version: Version, rows: LabelledRows) -> Iterator[VersionPerformance]:
        """A version in each period in which it answered, oldest first."""
        length = int(self._options.period_s * US)
        place = rows.time_us // length
        order = np.argsort(place, kind="stable")
        result, starts = np.unique(place[order], return_index=True)
        for period, chosen in zip(result.tolist(), np.split(order, starts[1:]), strict=True):
            yield self._measure(version, rows.where(chosen), period * length, (period + 1) * length)

    def _measure(
        self,
        version: Version,
        rows: LabelledRows,
        start_us: int,
        end_us: int,
        estimates: Mapping[str, Interval] | None = None,
    ) -> VersionPerformance:
        usable = np.isfinite(rows.labels)
        chosen = usable & (rows.time_us <= self._as_of_us - int(self._options.label_delay_s * US))
        old, enough = rows.where(chosen), self._options.min_rows
        apart = old.labels if old.shared is None else old.labels[np.unique(old.shared, return_index=True)[1]]
        figures: Mapping[str, Interval] = {}
        if version.is_known and len(apart) >= enough and _rarest(version.judge, apart) >= FEWEST_OF_A_CLASS:
            figures = measure(version.judge, old.labels, old.outputs, old.shared)
        if estimates is None:
            estimates = {}
            if self._options.estimates and version.estimator is not None and len(rows.labels) >= enough:
                estimates = version.estimator.estimate(version.judge, rows.outputs, version.baseline)
        return VersionPerformance(
            version=version.number,
            start=as_iso(start_us),
            end=as_iso(end_us),
            rows=len(rows.labels),
            labelled=int(usable.sum()),
            measured=len(old.labels),
            figures=figures,
            estimates=estimates,
        )


def as_iso(us: int) -> str:
    """Microseconds since the epoch as ISO 8601, UTC."""
    return datetime.fromtimestamp(us / US, UTC).isoformat()


def _rarest(judge: Judge, labels: Array) -> float:
    """Rows of the rarer of two classes; without a limit for other problems."""
    return float(min((labels == 0).sum(), (labels == 1).sum())) if judge.problem == BINARY else np.inf
