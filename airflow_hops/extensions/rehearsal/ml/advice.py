"""Advice on features whose faults are not found, or which are called drifted without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from airflow_hops.core.skew import SkewOptions
from airflow_hops.extensions.rehearsal.core.rehearsal import RehearsedFeature
from airflow_hops.extensions.rehearsal.ml.effects import Effects
from airflow_hops.extensions.rehearsal.ml.search import FaultFound, Rehearsing, share_of
from airflow_hops.extensions.rehearsal.ml.windows import RowsWindow, WindowPool, joined
from airflow_hops.ml.skew.trained import Trained
from airflow_hops.ml.statistics.sample import SAMPLE_ROWS

MUCH = 0.25
"""Mean change of a prediction, in standard deviations of predictions, that should not slip through."""
_ABOVE = 1.1
"""Factor above the largest distance of the unchanged windows at which a threshold is quiet."""
_LONGER = (2, 4, 8)
_TRIES = 20
HOPELESS = ("stale",)
"""Faults of single features that no comparison of distributions can find."""


@dataclass(frozen=True)
class Adviser:
    """Tries other thresholds and longer windows.

    Attributes:
        rehearsing: The comparison as it is.
        effects: What slips through.
        seed: Seed of the tries.
    """

    trained: Trained
    pool: WindowPool
    skew: SkewOptions
    rehearsing: Rehearsing
    effects: Effects
    seed: int

    def feature(self, name: str, found: Sequence[FaultFound]) -> RehearsedFeature:
        """Returns a feature with its state and advice.

        Args:
            name: The feature.
            found: Its faults.
        """
        windows = self.rehearsing.tries[: len(self.pool.windows)]
        unchanged = [one.unchanged[name] for one in windows if name in one.unchanged]
        scores = [skew.score for skew in unchanged]
        alarms = sum(skew.drifted for skew in unchanged)
        thresholds = [skew.threshold for skew in unchanged if skew.threshold is not None]
        often = f"Called drifted in {alarms} of {len(windows)} unchanged windows"
        result = RehearsedFeature(
            name,
            share_of(alarms, len(windows)),
            scores,
            float(np.median(thresholds)) if thresholds else None,
        )
        known = [score for score in scores if score is not None]

        def of(state: str, because: str, advice: str = "") -> RehearsedFeature:
            return replace(result, state=state, because=because, advice=advice)

        if (finding := self.rehearsing.prepared.findings.get(name)) is not None:
            return of("drifting", f"Cannot be compared: {finding.summary}")
        if name not in self.rehearsing.prepared.thresholds:
            return of("blind", "It is not compared: the schema has no skew comparator for it")
        if 2 * alarms > len(windows):
            because = f"{often}: it differs from the training already, so that faults cannot be told from it"
            return of("drifting", because)
        quiet = round(_ABOVE * max(known), 4) if known else None
        if alarms > 1 and result.false_alarms[1] > (self.skew.alpha or 0.0):
            if quiet is None or quiet >= 1:
                return of("loud", often)
            return of("loud", f"{often}, of which none is further apart", self._thresholds(name, quiet))
        worst = self._slipping([each for each in found if each.fault.kind not in HOPELESS])
        if worst is None:
            return result
        state = "blind" if all(not (each.places < len(each.fault.sizes)).any() for each in found) else "weak"
        advice, because = self._mended(name, worst, quiet, result.threshold)
        return of(state, because, advice)

    def slips(self, found: FaultFound) -> tuple[float, float | None]:
        """Returns the smallest size that is found, or the largest, and its effect on a prediction."""
        size = found.smallest()[0] or found.fault.sizes[-1]
        return size, self.effects.of(found.fault, size)[0]

    def _slipping(self, found: Sequence[FaultFound]) -> FaultFound | None:
        """Returns the fault that slips through and moves predictions most, if it moves them much."""
        spread = self.effects.spread
        if spread is None:
            return next((each for each in found if each.smallest()[0] is None), None)
        moved = [(effect, number) for number, each in enumerate(found) if (effect := self.slips(each)[1]) is not None]
        most, number = max(moved, default=(0.0, 0))
        return found[number] if most > MUCH * spread else None

    def _mended(self, name: str, worst: FaultFound, quiet: float | None, threshold: float | None) -> tuple[str, str]:
        """Returns arguments with which a fault no longer slips through, and what they change."""
        fault = worst.fault
        size, effect = self.slips(worst)
        slips = f"{fault.described(size)} {'is not found' if worst.smallest()[0] is None else 'is the least found'}"
        moves = f", which moves a prediction by {effect:.3g}" if effect is not None else ""
        if quiet is not None and threshold is not None and 0 < quiet < threshold:
            skew = replace(self.skew, thresholds={**(self.skew.thresholds or {}), name: quiet})
            if better := self._better(worst, self.pool, skew):
                return self._thresholds(name, quiet), f"{slips}{moves}; so it is found from {better} on"
        for times in _LONGER:
            if len(self.pool.windows) < 2 * times:
                break
            pool = _longer(self.pool, times)
            if better := self._better(worst, pool, self.skew):
                rows = int(np.median([window.rows for window in pool.windows]))
                return f"SkewOperator(min_rows={rows})", f"{slips}{moves}; {times} windows at once: from {better} on"
        return "", f"{slips}{moves}; no threshold and no longer window that was tried finds less of it"

    def _better(self, worst: FaultFound, pool: WindowPool, skew: SkewOptions) -> str:
        """Returns in words from where on a fault is found otherwise, if it then no longer moves predictions much."""
        rehearsing = Rehearsing(self.trained, pool, skew, _TRIES, self.seed)
        again = rehearsing.search([worst.fault], lambda share: None)[0]
        size, formerly = again.smallest()[0], worst.smallest()[0]
        spread, effect = self.effects.spread, self.slips(again)[1]
        if size is None or (formerly is not None and size >= formerly):
            return ""
        is_little = spread is None or effect is None or effect <= MUCH * spread
        return worst.fault.described(size) if is_little else ""

    def _thresholds(self, name: str, threshold: float) -> str:
        thresholds = {**(self.skew.thresholds or {}), name: threshold}
        return f"SkewOperator(thresholds={thresholds!r})"


def _longer(pool: WindowPool, times: int) -> WindowPool:
    """Returns windows of several windows each."""
    groups = [pool.windows[start : start + times] for start in range(0, len(pool.windows) - times + 1, times)]
    windows = []
    for number, group in enumerate(groups):
        table = joined([window.sample for window in group])
        order = np.random.default_rng(number).permutation(len(table))[:SAMPLE_ROWS]
        rows = sum(window.rows for window in group)
        windows.append(RowsWindow(rows, table.take(pa.array(np.sort(order))), group[0].start, group[-1].end))
    return replace(pool, windows=tuple(windows), every_s=pool.every_s * times)
