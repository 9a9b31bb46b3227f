"""Averages over the rows of a history, with intervals from resampled blocks of its periods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, hypot
from random import Random
from statistics import fmean

from airflow_hops.core.contract.performance import Interval


@dataclass(frozen=True)
class BlockBootstrap:
    """The moving block bootstrap (Kuensch, 1989) of an average over the rows of periods.

    Neighbouring periods resemble each other, so that resampling them one by one would give intervals that are too
    narrow. Blocks of neighbours are drawn instead, with their rows and values. A block has the cube root of the number
    of periods, the order of length with the least error of the variance (Hall, Horowitz and Jing, 1995). Blocks at
    either end are in fewer samples, so the resampled averages are moved to lie around the average itself. All values
    are averaged over the same blocks: the interval of a difference is that of pairs. Of less than some twenty periods
    the intervals are too narrow.

    Attributes:
        rows: Rows of each period.
        samples: Resampled histories: of each the first period of its blocks.
        block: Periods in a block.
    """

    rows: Sequence[int]
    samples: Sequence[Sequence[int]]
    block: int

    @classmethod
    def of(cls, rows: Sequence[int], samples: int = 2000, seed: int = 0) -> BlockBootstrap:
        """Draws the blocks."""
        count = len(rows)
        block = max(round(count ** (1 / 3)), 1)
        draw = Random(seed).randrange
        blocks = ceil(count / block)
        return cls(rows, [[draw(count - block + 1) for _ in range(blocks)] for _ in range(samples)], block)

    def average(self, values: Sequence[float]) -> Interval:
        """The average over the rows, and its 95% interval (percentiles).

        Args:
            values: One for each period.
        """
        weighted = [value * count for value, count in zip(values, self.rows, strict=True)]
        sums, counts = ([0.0, *accumulate(each)] for each in (weighted, self.rows))
        if not counts[-1]:
            return 0.0, 0.0, 0.0
        mean = sums[-1] / counts[-1]
        results = []
        for sample in self.samples:
            total = rows = 0.0
            for first in sample:
                total += sums[first + self.block] - sums[first]
                rows += counts[first + self.block] - counts[first]
            results.append(total / rows if rows else mean)
        results.sort()
        moved = mean - fmean(results)
        low, high = results[round(0.025 * (len(results) - 1))], results[round(0.975 * (len(results) - 1))]
        return mean, min(low + moved, mean), max(high + moved, mean)


def gain_of(
    candidate: Sequence[Interval | None],
    champion: Sequence[Interval | None],
    rows: Sequence[int],
    *,
    lower_is_better: bool,
) -> Interval | None:
    """Returns the mean gain of a candidate over a champion on the rows of some periods.

    The interval is that of the figures of each period. Both models are scored on the same rows, and so err alike; the
    interval takes them for independent, and is rather too wide.

    Args:
        candidate: Its metric in each period, with the 95% interval; None where it is not defined.
        champion: Likewise.
        rows: Rows of each period.
        lower_is_better: Whether less of the metric is better.

    Returns:
        The difference, above 0 for better, with its interval; None if it is known of no row.
    """
    known = [
        (of, other, count)
        for of, other, count in zip(candidate, champion, rows, strict=True)
        if of is not None and other is not None and count
    ]
    total = sum(count for _, _, count in known)
    if not total:
        return None
    sign = -1 if lower_is_better else 1
    mean = sign * sum((of[0] - other[0]) * count for of, other, count in known) / total
    halves = [(each[2] - each[1]) / 2 * count for of, other, count in known for each in (of, other)]
    half = hypot(*halves) / total
    return mean, mean - half, mean + half
