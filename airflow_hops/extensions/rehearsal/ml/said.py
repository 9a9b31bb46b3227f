"""Answers of monitor and policy to planted faults: chains of decisions over windows, by the trunk's ``decide``."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.performance import PerformanceProperties
from airflow_hops.core.retraining.conditions import Memory
from airflow_hops.core.retraining.decision import RetrainingDecision, decide
from airflow_hops.core.retraining.performance import Performance
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.retraining.situation import Situation
from airflow_hops.core.skew import DRIFT, STABLE, SkewProperties
from airflow_hops.core.times import as_utc
from airflow_hops.extensions.rehearsal.core.rehearsal import FOUND, RehearsedWindow
from airflow_hops.extensions.rehearsal.ml.search import FaultFound, Try
from airflow_hops.extensions.rehearsal.ml.windows import RowsWindow
from airflow_hops.ml.distances.report import FeatureSkew, verdict_of
from airflow_hops.ml.skew.trained import Trained

_BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
_NO_LABELS = "the rehearsal of this fault has no labels"


@dataclass(frozen=True)
class Said:
    """Answer of monitor and policy to a fault.

    Attributes:
        after: Comparisons until they say so, in 80% of the starts; None if they do not.
        verdict: Verdict of most comparisons that find it.
        cause: Cause that most of them report.
        retraining: Whether a retraining is requested in most starts.
        why: Reason of the policy.
    """

    after: int | None = None
    verdict: str = ""
    cause: str = ""
    retraining: bool = False
    why: str = ""


@dataclass(frozen=True)
class _Comparison:
    verdict: str
    drifted: tuple[str, ...] = ()
    causes: Mapping[str, str] = field(default_factory=dict)
    effects: Mapping[str, float] = field(default_factory=dict)
    measured: PerformanceProperties | None = None


class Monitor:
    """A policy over windows, of which those of ``tries`` are in the order of their time.

    Args:
        trained: The model.
        policy: The policy.
        windows: Unchanged windows, oldest first.
        tries: Their comparisons.
        every_s: Seconds between two comparisons.
    """

    def __init__(
        self,
        trained: Trained,
        policy: RetrainingPolicy,
        windows: Sequence[RowsWindow],
        tries: Sequence[Try],
        every_s: float,
    ) -> None:
        self._trained, self._policy, self._windows = trained, policy, windows
        self._tries, self._every = tries[: len(windows)], timedelta(seconds=every_s)
        until = (ModelProperties.of(trained.model).window or (None, None))[1]
        self._until = as_utc(until) if until else None
        ends = [as_utc(window.end) for window in windows if window.end]
        self._begin = ends[0] if ends else (self._until or _BEGIN) + self._every

    def unchanged(self) -> list[RehearsedWindow]:
        """Returns what is said of the unchanged windows, one after the other."""
        comparisons = [_compared(one.unchanged) for one in self._tries]
        decisions = self._decisions(comparisons, 0)
        return [
            RehearsedWindow(
                window.start,
                window.end,
                window.rows,
                comparison.verdict,
                comparison.drifted,
                decision.requested,
                decision.reason,
            )
            for window, comparison, decision in zip(self._windows, comparisons, decisions, strict=True)
        ]

    def of(self, found: FaultFound, size: float, effect: float | None) -> Said:
        """Returns what is said of a fault of a size that moves a prediction by ``effect`` on average."""
        hits, explained = found.is_found(size), len(found.verdicts)
        named = found.fault.features[:1] or ("rows",)
        comparisons, turned = [], [bool(hits[number % len(hits)]) for number in range(len(self._tries))]
        for number, (one, hit) in enumerate(zip(self._tries, turned, strict=True)):
            comparison, place = _compared(one.unchanged), number % explained
            if hit:
                verdict, cause = found.verdicts[place] or DRIFT, found.causes[place]
                drifted = tuple(dict.fromkeys([*named, *comparison.drifted]))
                effects = dict.fromkeys(named, effect) if effect is not None else {}
                worst = comparison.verdict if comparison.verdict not in (STABLE, DRIFT) else verdict
                comparison = _Comparison(worst, drifted, {**comparison.causes, **dict.fromkeys(named, cause)}, effects)
            comparisons.append(comparison)
        result = self._chained(comparisons, turned)
        return replace(result, verdict=_usual(found.verdicts), cause=_usual(found.causes))

    def is_worse(self, measured: PerformanceProperties | None) -> bool:
        """Returns whether the policy finds a measured performance worse."""
        situation = self._situation(_Comparison(STABLE, measured=measured), 0)
        leaves = self._policy.when.leaves()
        return any(leaf.check(situation, Memory()).held for leaf in leaves if isinstance(leaf, Performance))

    def of_labels(self, measured: Sequence[PerformanceProperties]) -> Said:
        """Returns what is said if labels alone change, as measured at each comparison."""
        comparisons = [_Comparison(STABLE, measured=each) for each in measured]
        return self._chained(comparisons, [False] * len(comparisons))

    def _chained(self, comparisons: Sequence[_Comparison], hits: Sequence[bool]) -> Said:
        """Decides from each window on, as if the fault began with it; after the last window comes the first."""
        waits, requested, why = list[int | None](), list[bool](), Counter[str]()
        for start in range(len(comparisons)):
            decisions = list[RetrainingDecision]()
            for decision in self._decisions(comparisons, start):
                decisions.append(decision)
                if decision.requested:
                    break
            first = next((place for place, hit in enumerate([*hits[start:], *hits[:start]]) if hit), None)
            requested.append(decisions[-1].requested)
            waits.append(len(decisions) - 1 if requested[-1] else first)
            why[decisions[-1 if requested[-1] else first or 0].reason] += 1
            if not any(hits) and not any(requested):
                break  # whatever the start is
        never = len(comparisons)
        after = 1 + sorted(never if wait is None else wait for wait in waits)[int(np.ceil(FOUND * len(waits))) - 1]
        return Said(
            after if after <= never else None,
            retraining=2 * sum(requested) > len(requested),
            why=why.most_common(1)[0][0],
        )

    def _decisions(self, comparisons: Sequence[_Comparison], start: int) -> Iterator[RetrainingDecision]:
        previous = None
        for place in range(len(comparisons)):
            comparison = comparisons[(start + place) % len(comparisons)]
            previous = decide(self._policy, self._situation(comparison, place), previous)
            yield previous

    def _situation(self, comparison: _Comparison, place: int) -> Situation:
        time = self._begin + place * self._every
        skew = SkewProperties(
            verdict=comparison.verdict,  # type: ignore[arg-type]
            drifted=comparison.drifted,
            causes=comparison.causes,  # type: ignore[arg-type]
            effects=comparison.effects,
            reference=self._trained.origin,
            scores=dict.fromkeys(self._trained.types, (None, None)),
            window_end=time.isoformat(),
        )
        known: dict[str, Any] = {"unmeasured": _NO_LABELS}
        if comparison.measured is not None:
            properties = comparison.measured.to_dict()
            known = {"measured": Artifact("rehearsal", "performance", "", properties=properties)}
        return Situation(
            time,
            "data",
            skew,
            ("rehearsal", hashlib.sha256(f"{place}".encode()).hexdigest()),
            rows=self._windows[place % len(self._windows)].rows,
            span=((time - self._every).isoformat(), time.isoformat()),
            trained_until=self._until,
            now=time,
            **known,
        )


def _usual(values: Sequence[str]) -> str:
    """Returns the most frequent value; empty if there is none."""
    return next((value for value, _ in Counter(filter(None, values)).most_common(1)), "")


def _compared(features: Mapping[str, FeatureSkew]) -> _Comparison:
    drifted = {name: skew for name, skew in features.items() if skew.drifted}
    causes = {name: skew.cause for name, skew in drifted.items() if skew.cause}
    return _Comparison(verdict_of(features.values()), tuple(drifted), causes)
