"""Looks for the smallest size of each fault that the monitor's comparison finds, in a shared pool of windows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.core.skew import SkewOptions
from airflow_hops.core.times import as_utc
from airflow_hops.extensions.rehearsal.core.rehearsal import FOUND, PowerAtSize
from airflow_hops.extensions.rehearsal.ml.faults import Fault, Target
from airflow_hops.extensions.rehearsal.ml.windows import RowsWindow, WindowPool, joined
from airflow_hops.ml.distances.decide import Judged, decide
from airflow_hops.ml.distances.detect import Prepared
from airflow_hops.ml.distances.repeats import without_repeats
from airflow_hops.ml.distances.report import FeatureSkew, verdict_of
from airflow_hops.ml.distances.sides import Array, ReadValues, alike, alike_values, values_read
from airflow_hops.ml.distances.tfdv_measures import measured_by_tfdv
from airflow_hops.ml.distances.windows import OwnWindow, compare_windows
from airflow_hops.ml.metrics.metrics import wilson
from airflow_hops.ml.skew.trained import Trained
from airflow_hops.ml.spark.pools import fork_parts
from airflow_hops.ml.statistics.generate import collect_statistics

# Each try is a window; where there are fewer than tries, further ones have rows of two windows. A fault is planted into
# a window once with growing sizes: a larger one changes the rows of a smaller one, too, so each window has a smallest
# size that is found, to which few comparisons lead, and the share of windows whose smallest size is below a size is the
# power at it. A comparison judges the changed features alone; the others count for the share of false discoveries with
# what they were unchanged.

_ROW = "#"
_EXPLAINED, _CALLED = 5, 4
"""Tries in which causes are looked for, and in which the size from which on they are faults."""
_KEPT = 8
"""Comparisons of planted rows that are kept, as their causes are asked for next."""
_OF_ROWS = 4
"""Faults of whole rows are planted into one of so many tries: all features are compared each time."""


@dataclass(frozen=True, eq=False)
class Try:
    """A window whose unchanged rows are compared.

    Attributes:
        target: Its rows.
        judged: Its features, to be decided about.
        unchanged: What is decided about them.
        windows: Windows of the reference, if rows depend on the time.
    """

    target: Target
    judged: Mapping[str, Judged]
    unchanged: Mapping[str, FeatureSkew]
    windows: OwnWindow | None

    @property
    def drifted(self) -> frozenset[str]:
        """Features that have drifted without a fault."""
        return frozenset(name for name, skew in self.unchanged.items() if skew.drifted)


@dataclass(frozen=True)
class FaultFound:
    """A fault in all tries.

    Attributes:
        places: By try, the number of the smallest size that is found; the number of sizes if none is.
        verdicts: By try, for some, the verdict at it; empty if none is found.
        causes: By try, for some, the probable cause at it.
        faulty: By try, for some, the number of the smallest size that is called a fault of the pipeline.
    """

    fault: Fault
    places: Array
    verdicts: Sequence[str]
    causes: Sequence[str]
    faulty: Array

    def curve(self) -> tuple[PowerAtSize, ...]:
        """Returns the power at each size."""
        return tuple(
            PowerAtSize(size, share_of(int((self.places <= place).sum()), len(self.places)))
            for place, size in enumerate(self.fault.sizes)
        )

    def smallest(self) -> tuple[float | None, tuple[float | None, float | None]]:
        """Returns the size that is found in 80% of the tries, and its 95% interval; None beyond the sizes."""
        curve = self.curve()
        shares = [[each.power[part] for each in curve] for part in (0, 2, 1)]
        size, low, high = (_crossing(self.fault.sizes, each) for each in shares)
        return size, (low, high)

    def fault_from(self) -> float | None:
        """Returns the size that is called a fault of the pipeline in 80% of the tries; None if none is."""
        shares = [float((self.faulty <= place).mean()) for place in range(len(self.fault.sizes))]
        return _crossing(self.fault.sizes, shares)

    def is_found(self, size: float) -> Array:
        """Returns by try whether a size is found."""
        return np.asarray(self.places <= np.searchsorted(self.fault.sizes, size * (1 - 1e-9)))


class Rehearsing:
    """The monitor's comparison of a pool of windows.

    Args:
        trained: The reference.
        pool: The windows.
        skew: Options of the comparison.
        count: Number of tries.
        seed: Seed of further tries, and of the rows that faults reach.
    """

    def __init__(self, trained: Trained, pool: WindowPool, skew: SkewOptions, count: int, seed: int = 0) -> None:
        self.trained, self.pool, self.skew = trained, pool, skew
        self.names = list(trained.types)
        self.processes = len(os.sched_getaffinity(0))
        self.prepared = Prepared.of(trained.reference, pool.side(pool.windows[0].sample), trained.schema, skew)
        reference = trained.reference.sample
        if reference is None:
            raise BadInput(
                f"{trained.origin.statistics}: has no sample of rows, so that there is nothing to plant faults beside; "
                "compute the statistics again with StatisticsOperator"
            )
        self.reference: pa.Table = reference
        self._read: dict[str, ReadValues] = {
            name: values_read(reference, name, skew.seed)
            for name, width in self.prepared.widths.items()
            if width is None
        }
        own = [self._without_repeats(window) for window in pool.windows]
        windows = [*own, *(_mixed(own, number, seed) for number in range(len(own), count))]
        self.tries = self._compared(windows[: max(count, len(own))], seed)
        self.count = count
        self._planted = lru_cache(_KEPT)(self._compare_planted)

    def _without_repeats(self, window: RowsWindow) -> RowsWindow:
        """Returns a window with each row once, as the monitor compares it."""
        rows = window.sample.select(self.names).append_column(_ROW, pa.array(range(len(window.sample))))
        side, _ = without_repeats(self.trained.reference, self.pool.side(rows))
        assert side.sample is not None
        return replace(window, sample=window.sample.take(side.sample[_ROW]))

    def _compared(self, windows: Sequence[RowsWindow], seed: int) -> list[Try]:
        targets = [_target(windows, number, seed) for number in range(len(windows))]
        own = [self._own_window(window) for window in windows]

        def compare(number: int) -> tuple[dict[str, Judged], dict[str, FeatureSkew]]:
            columns = {name: targets[number].rows[name] for name in self.names}
            judged = self._judged(columns, own[number])
            unchanged = decide(judged, self.skew)
            return {name: replace(each, read=None) for name, each in judged.items()}, unchanged

        results = fork_parts(self.processes, compare, list(range(len(windows))), lambda ended: None)
        return [Try(target, one, other, each) for target, (one, other), each in zip(targets, results, own, strict=True)]

    def _own_window(self, window: RowsWindow) -> OwnWindow | None:
        if not self.skew.own_windows or not window.start or self.trained.time is None:
            return None
        return self.trained.time, as_utc(window.start).timestamp(), as_utc(window.end).timestamp()

    def _judged(self, columns: Mapping[str, Any], own: OwnWindow | None) -> dict[str, Judged]:
        """Compares changed columns of a window."""
        prepared, judged = self.prepared, {}
        nearest: Mapping[str, Any] = {}
        widths = {name: prepared.widths[name] for name in columns if name in prepared.thresholds}
        if own is not None:
            nearest = compare_windows(own, self.reference, pa.table(dict(columns)), widths)[0]
        for name, width in widths.items():
            column = columns[name]
            if width is None:
                current = pa.table({name: column})
                values = alike_values([self._read[name], values_read(current, name, self.skew.seed)])
                read: Callable[[], Any] = partial(list, values)
            else:
                samples = [self.reference, pa.table({name: column})]
                read = partial(alike, samples, name, width=width, seed=self.skew.seed)
            this = prepared
            if name in prepared.measured:
                statistics = collect_statistics(pa.table({name: column})).statistics
                schema, comparator = self.trained.schema, self.skew.comparator
                measured = measured_by_tfdv(self.trained.reference.statistics, statistics, schema, comparator, ())
                this = replace(prepared, measured=measured)
            judged[name] = this.judge(name, read, nearest.get(name, {}), described=False)
        return judged

    def decided(self, fault: Fault, one: Try, size: float, *, explained: bool = False) -> list[FeatureSkew]:
        """Returns the features that have drifted by a fault of a size in a try, their causes if ``explained``."""
        names = set(fault.features or self.names)
        judged = {**one.judged, **self._planted(fault, one, size)}
        decided = decide(judged, self.skew, only=names & judged.keys(), explained=explained)
        return [skew for name, skew in decided.items() if skew.drifted and (fault.features or name not in one.drifted)]

    def _compare_planted(self, fault: Fault, one: Try, size: float) -> dict[str, Judged]:
        columns = fault.plant(one.target, size)
        if not fault.features:
            rows = pa.table({name: columns[name] for name in self.names})
            side, _ = without_repeats(self.trained.reference, self.pool.side(rows))
            columns = {name: side.sample[name] for name in self.names} if side.sample is not None else columns
        return self._judged(columns, one.windows)

    def search(self, faults: Sequence[Fault], report: Callable[[float], None]) -> list[FaultFound]:
        """Looks for the smallest size of each fault that is found; ``report`` gets the completed share."""

        def work(number: int) -> tuple[Array, Sequence[str], Sequence[str], Array]:
            fault = faults[number]
            sizes = fault.sizes
            tries = self.tries[: self.count if fault.features else max(5, self.count // _OF_ROWS)]
            places, verdicts, causes, faulty = list[int](), list[str](), list[str](), list[int]()

            def drifts(one: Try, place: int) -> bool:
                return bool(self.decided(fault, one, sizes[place]))

            def is_fault(one: Try, place: int) -> bool:
                return any(each.fault for each in self.decided(fault, one, sizes[place], explained=True))

            is_one = is_fault(tries[0], len(sizes) - 1)
            for turn, one in enumerate(tries):
                guess = int(np.median(places)) if places else len(sizes) // 2
                places.append(first_found(partial(drifts, one), len(sizes), guess))
                is_there = places[-1] < len(sizes)
                if turn < _EXPLAINED:
                    new = self.decided(fault, one, sizes[places[-1]], explained=True) if is_there else []
                    verdicts.append(verdict_of(new) if new else "")
                    causes.append(str(new[0].cause) if new else "")
                if turn < _CALLED:
                    guess = int(np.median(faulty or places))
                    faulty.append(first_found(partial(is_fault, one), len(sizes), guess) if is_one else len(sizes))
            return np.array(places), verdicts, causes, np.array(faulty)

        numbers = list(range(len(faults)))
        results = fork_parts(self.processes, work, numbers, lambda ended: report(ended / len(faults))) if faults else []
        return [FaultFound(fault, *each) for each, fault in zip(results, faults, strict=True)]


def first_found(found: Callable[[int], bool], count: int, guess: int) -> int:
    """Returns the first of ``count`` places that is found, if all after it are, too; ``count`` if none is.

    It begins with a guess, and takes twice as large a step each time until it has passed the place.
    """
    low, high, step, place = -1, count, 1, min(max(guess, 0), count - 1)
    while high - low > 1:
        if found(place):
            high = place
        else:
            low = place
        place = high - step if low < 0 else low + step if high == count else (low + high) // 2
        place, step = min(max(place, low + 1), high - 1), 2 * step
    return high


def share_of(count: int, total: int) -> tuple[float, float, float]:
    """Returns a share with Wilson's 95% interval, which is from 0 to 1 of nothing."""
    if not total:
        return 0.0, 0.0, 1.0
    low, high = wilson(count / total, total)
    return round(count / total, 6), round(low, 6), round(high, 6)


def _crossing(sizes: Sequence[float], shares: Sequence[float]) -> float | None:
    """Returns the size from which on the power is 80%, between sizes on a logarithmic scale."""
    place = next((place for place, share in enumerate(shares) if share >= FOUND), None)
    if place is None:
        return None
    if place == 0 or shares[place] == shares[place - 1]:
        return sizes[place]
    part = (FOUND - shares[place - 1]) / (shares[place] - shares[place - 1])
    low, high = np.log(sizes[place - 1]), np.log(sizes[place])
    return float(f"{np.exp(low + part * (high - low)):.3g}")


def _random(*parts: object) -> np.random.Generator:
    return np.random.default_rng(crc32(" ".join(map(str, parts)).encode()))


def _mixed(windows: Sequence[RowsWindow], number: int, seed: int) -> RowsWindow:
    """Returns a window with rows of two windows."""
    random = _random("window", number, seed)
    one, other = (windows[place] for place in random.choice(len(windows), 2, replace=False))
    rows = min(len(one.sample), len(other.sample))
    both = joined([one.sample, other.sample])
    chosen = np.sort(random.permutation(len(both))[:rows])
    return RowsWindow(rows, both.take(pa.array(chosen)), one.start, one.end)


def _target(windows: Sequence[RowsWindow], number: int, seed: int) -> Target:
    rows, earlier = windows[number].sample, windows[number - 1].sample
    random = _random("rows", number, seed)
    taken = random.integers(0, len(earlier), len(rows)) if len(earlier) < len(rows) else np.arange(len(rows))
    return Target(rows, earlier.take(pa.array(taken)), random.permutation(len(rows)))
