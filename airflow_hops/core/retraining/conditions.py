"""Conditions of a policy: each checks a situation and reports whether it holds, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Self

from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import JsonFields, omit_if_none
from airflow_hops.core.names import suggestion
from airflow_hops.core.retraining.parts import PolicyPart, check_part
from airflow_hops.core.retraining.situation import Situation
from airflow_hops.core.skew import DRIFT, INSUFFICIENT, PIPELINE_FAULT


@dataclass(frozen=True)
class Memory(JsonFields):
    """The outcome of all comparisons with the same training data, including the newest.

    Attributes:
        reference: Fingerprint of the training data; empty for spans, whose comparisons are all counted together.
        until: Time of the newest comparison, ISO 8601 UTC; empty before the first.
        drifting: By feature that currently drifts: the number of consecutive comparisons with drift, and the start of
            the first.
        requests: Number of retrainings that were requested for this training data.
        clock: Clock of ``until``; empty before the first comparison.
        counted: Fingerprints of the comparisons at ``until``.

    Example:
        >>> from airflow_hops import Memory
        >>> Memory(drifting={"distance": (2, "2026-11-01T00:00:00+00:00")}).drifting["distance"][0]
        2
    """

    reference: str = ""
    until: str = ""
    drifting: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    rows: int = 0
    requests: int = 0
    clock: str = ""
    counted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding(JsonFields):
    """The result of a condition.

    Attributes:
        held: Whether it holds.
        text: Reason in words.
        numbers: Numbers behind the result.
        parts: For a composition: results of its conditions.
        blind: True if the monitor cannot observe what the condition needs; None otherwise.

    Example:
        >>> from airflow_hops import Finding
        >>> Finding("age", True, "the champion was trained 31 days ago", {"days": 31}).held
        True
    """

    condition: str
    held: bool
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Finding, ...] | None = omit_if_none()
    blind: bool | None = omit_if_none()

    def leaves(self) -> list[Finding]:
        """Returns the results of the individual conditions."""
        return [self] if self.parts is None else [leaf for part in self.parts for leaf in part.leaves()]


@dataclass(frozen=True)
class Condition(PolicyPart):
    """A condition of a policy.

    Example:
        >>> from datetime import timedelta
        >>> from airflow_hops import Age, AnyOf, Condition, Drift
        >>> either = AnyOf(Drift(consecutive=2), Age(timedelta(days=30)))
        >>> isinstance(either, Condition), [condition.kind for condition in either.leaves()]
        (True, ['drift', 'age'])
    """

    def check(self, situation: Situation, memory: Memory) -> Finding:
        """Returns whether the condition holds. Raises BadInput if it needs facts that this monitor can never know."""
        raise NotImplementedError

    def leaves(self) -> list[Condition]:
        """Returns the individual conditions of a composition."""
        return [self]

    def _found(self, held: bool, text: str, **numbers: object) -> Finding:
        return Finding(self.kind, held, text, numbers)


@dataclass(frozen=True)
class Drift(Condition):
    """Holds if the verdict is "drift", and a feature drifts in several consecutive comparisons.

    Of the features that the verdict reports as drifted, a share of at most ``SkewOperator``'s ``alpha`` is expected to
    be false (Benjamini and Hochberg, 1995). Each comparison is a separate test, so a monitor that compares often
    occasionally raises a false alarm. ``consecutive`` reduces that: independent comparisons report the same unchanged
    feature as drifted ``k`` times in a row with at most the ``k``-th power of the probability of once. Comparisons with
    too few rows, or with a pipeline fault, are ignored.

    Attributes:
        features: ``"*"`` for all, or names of the features that count.
        consecutive: Number of comparisons in a row.
        min_effect: Smallest mean change of a prediction (probability; in a regression the label's unit) that the drift
            must cause, as estimated by ``SkewOperator``'s ``attribute``. A feature with unknown effect counts.

    Raises:
        BadInput: no feature is named, or a number is not above 0.
    """

    features: str | Sequence[str] = "*"
    consecutive: int = 1
    min_effect: float | None = None
    kind: ClassVar[str] = "drift"

    def __post_init__(self) -> None:
        self._whole(consecutive=self.consecutive)
        self._number(above=0, min_effect=self.min_effect)
        if self.features != "*":
            # JSON has lists, and a single name is allowed.
            is_list = isinstance(self.features, Sequence) and not isinstance(self.features, str)
            names = tuple(self.features) if is_list else (self.features,)
            if not names or not all(isinstance(name, str) and name for name in names):
                raise BadInput(f"Drift: features is {self.features!r}, expected '*' or names of features")
            object.__setattr__(self, "features", names)

    def check(self, situation: Situation, memory: Memory) -> Finding:
        """Returns whether the condition holds; see :meth:`Condition.check`."""
        skew = situation.skew
        for name in self.features if self.features != "*" and skew.scores else ():
            if name not in skew.scores:
                raise BadInput(
                    f"policy: Drift names the feature {name!r}, which is not compared; compared are "
                    f"{', '.join(skew.scores)}{suggestion(name, skew.scores)}"
                )
        if skew.verdict == INSUFFICIENT:
            needed = "" if skew.min_rows is None else f" of {skew.min_rows:,}"
            return self._found(False, f"the verdict is 'insufficient': {situation.rows:,}{needed} rows")
        if skew.verdict != DRIFT:
            return self._found(False, f"the verdict is {skew.verdict!r}")
        named = [name for name in skew.drifted if self.features == "*" or name in self.features]
        effects = {name: abs(skew.effects[name]) for name in named if name in skew.effects}
        smallest = self.min_effect or 0.0
        large = [name for name in named if effects.get(name, smallest) >= smallest]
        rows = {name: memory.drifting.get(name, (1, ""))[0] for name in large}
        enough = [name for name in large if rows[name] >= self.consecutive]
        numbers = {"in_a_row": rows, "needed": self.consecutive, "effects": effects}
        if enough:
            times = f", {min(rows[name] for name in enough)} comparisons in a row" if self.consecutive > 1 else ""
            text = f"{', '.join(enough)} drifted from {situation.reference_in_words}{times}"
        elif large:
            text = f"{', '.join(large)} drifted, {max(rows.values())} of {self.consecutive} comparisons in a row"
        elif named:
            text = f"{', '.join(named)} drifted, with effects below {smallest:g}"
        else:
            text = f"only {', '.join(skew.drifted)} drifted"
        return self._found(bool(enough), text, **numbers)


@dataclass(frozen=True)
class PredictionDrift(Condition):
    """Holds if the champion's predictions for the current rows are distributed unlike those for its training data.

    They are computed from samples of both (``predictions`` of ``SkewOperator``). They also move where features move
    together, each within its bounds. The condition holds regardless of the verdict, unless that is "insufficient".

    Attributes:
        distance: Distance above which it holds (:mod:`airflow_hops.ml.distances.measures`), 0 to 1; None, or one
            below that of the comparison (0.05, or what chance explains), for that of the comparison.

    Raises:
        BadInput: ``distance`` is not above 0.

    Example:
        >>> from airflow_hops import PredictionDrift, RetrainingPolicy
        >>> RetrainingPolicy(when=PredictionDrift(distance=0.1)).when.distance
        0.1
    """

    distance: float | None = None
    kind: ClassVar[str] = "prediction_drift"

    def __post_init__(self) -> None:
        self._number(above=0, distance=self.distance)

    def check(self, situation: Situation, memory: Memory) -> Finding:
        """Returns whether the condition holds; see :meth:`Condition.check`."""
        if situation.skew.verdict == INSUFFICIENT:
            return self._found(False, "the verdict is 'insufficient'")
        if situation.skew.prediction is None:
            text = "the predictions were not compared: see the notes of the comparison"
            return Finding(self.kind, False, text, blind=True)
        distance, threshold = situation.skew.prediction
        threshold = max(threshold, self.distance or 0.0)
        held = distance > threshold
        text = f"the distance of the predictions is {distance:.3g}, {'above' if held else 'of'} {threshold:.3g}"
        return self._found(held, text, distance=distance, threshold=threshold)


@dataclass(frozen=True)
class Age(Condition):
    """Holds if the champion's newest training data is older than a limit, in the data's own time.

    It is not a statistical test: it bounds the age of the model if drift is not detected.

    Attributes:
        limit: Maximum age.

    Raises:
        BadInput: ``limit`` is not above 0; or, when checked, the champion's training data has no window.
    """

    limit: timedelta
    kind: ClassVar[str] = "age"

    def __post_init__(self) -> None:
        self._duration(limit=self.limit)

    def check(self, situation: Situation, memory: Memory) -> Finding:
        """Returns whether the condition holds; see :meth:`Condition.check`."""
        if situation.trained_until is None and situation.in_flight is not None:
            return self._found(False, f"the age of the training data is not known, as {situation.in_flight}")
        if situation.trained_until is None:
            raise BadInput(
                f"policy: Age needs the end of the training data's window, which {situation.reference_in_words} does "
                "not say; set window_end of the IngestOperator, or leave Age out"
            )
        age = situation.at - situation.trained_until
        held = age > self.limit
        limit = f"{'over' if held else 'of'} {_days(self.limit)}"
        text = f"the training data ends {_days(age)} before the compared data ({limit})"
        return self._found(held, text, age_days=_rounded(age), limit_days=_rounded(self.limit))


@dataclass(frozen=True)
class NewRows(Condition):
    """Holds once N rows were compared with the champion's training data.

    Attributes:
        rows: Number of rows.

    Raises:
        BadInput: ``rows`` is not an integer above 0; or, when checked, two spans are compared.
    """

    rows: int
    kind: ClassVar[str] = "new_rows"

    def __post_init__(self) -> None:
        self._whole(rows=self.rows)

    def check(self, situation: Situation, memory: Memory) -> Finding:
        """Returns whether the condition holds; see :meth:`Condition.check`."""
        if situation.skew.reference.model is None:
            raise BadInput(
                "policy: NewRows counts since a champion's training data became the reference, but two spans are "
                "compared, which have no champion; leave NewRows out, or compare with SkewOperator(model_name=…)"
            )
        text = f"{memory.rows:,} of {self.rows:,} new rows"
        return self._found(memory.rows >= self.rows, text, rows=memory.rows, needed=self.rows)


@dataclass(frozen=True)
class PipelineFault(Condition):
    """Holds if the verdict is "pipeline_fault", since retraining would learn the fault.

    Example:
        >>> from airflow_hops import Drift, PipelineFault, RetrainingPolicy
        >>> RetrainingPolicy(when=Drift(), unless=PipelineFault()).unless.kind
        'pipeline_fault'
    """

    kind: ClassVar[str] = "pipeline_fault"

    def check(self, situation: Situation, memory: Memory) -> Finding:
        """Returns whether the condition holds; see :meth:`Condition.check`."""
        skew = situation.skew
        if skew.verdict != PIPELINE_FAULT:
            return self._found(False, "no fault of the pipeline")
        causes = skew.causes or dict.fromkeys(skew.lost, "all_missing")
        result = ", ".join(f"{name} ({cause})" for name, cause in causes.items())
        return self._found(
            True,
            f"the verdict is 'pipeline_fault': {result}; correct the source of the model's features: retraining would "
            "learn the fault",
        )


@dataclass(frozen=True)
class RolloutRunning(Condition):
    """Holds while a challenger is being rolled out.

    Example:
        >>> from airflow_hops import Drift, RetrainingPolicy, RolloutRunning
        >>> RetrainingPolicy(when=Drift(), unless=RolloutRunning()).unless.kind
        'rollout'
    """

    kind: ClassVar[str] = "rollout"

    def check(self, situation: Situation, memory: Memory) -> Finding:
        """Returns whether the condition holds; see :meth:`Condition.check`."""
        text = "no rollout is under way" if situation.rollout is None else situation.rollout
        return self._found(situation.rollout is not None, text)


@dataclass(frozen=True)
class Rejected(Condition):
    """Holds if N requested retrainings in a row brought no new champion, so that a person must intervene.

    A request counts if its candidate was rejected, rolled back, or never trained. The count starts again when another
    champion serves. The condition never holds for two spans, which have no champion.

    Attributes:
        times: Number of requests.

    Raises:
        BadInput: ``times`` is not an integer above 0.

    Example:
        >>> from airflow_hops import Drift, Rejected, RetrainingPolicy
        >>> RetrainingPolicy(when=Drift(), unless=Rejected(times=2)).unless.times
        2
    """

    times: int = 3
    kind: ClassVar[str] = "rejected"

    def __post_init__(self) -> None:
        self._whole(times=self.times)

    def check(self, situation: Situation, memory: Memory) -> Finding:
        """Returns whether the condition holds; see :meth:`Condition.check`."""
        if situation.skew.reference.model is None:
            return self._found(False, "two spans have no champion, so the outcome of requests is unknown")
        held = memory.requests >= self.times
        text = (
            f"{memory.requests} of {self.times} requested retrainings in a row brought no new champion"
            + ": see why, then deploy one, or raise the number in the policy" * held
        )
        return self._found(held, text, requests=memory.requests, limit=self.times)


@dataclass(frozen=True, init=False)
class Composition(Condition):
    """A condition made of other conditions.

    Raises:
        BadInput: there are no conditions, or one is not a condition.
    """

    conditions: tuple[Condition, ...]
    _holds: ClassVar[Any]

    def __init__(self, *conditions: Condition) -> None:
        if not conditions:
            raise BadInput(f"{type(self).__name__}: there are no conditions, expected at least one")
        for number, each in enumerate(conditions):
            check_part(self, f"conditions[{number}]", each, Condition)
        object.__setattr__(self, "conditions", conditions)

    @classmethod
    def _given(cls, values: Mapping[str, object]) -> Self:
        conditions = values.get("conditions", ())
        if not isinstance(conditions, tuple):
            raise BadInput(f"{cls.__name__}: conditions is {conditions!r}, expected a list of conditions")
        return cls(*conditions)

    def leaves(self) -> list[Condition]:
        """Returns the individual conditions."""
        return [leaf for each in self.conditions for leaf in each.leaves()]

    def check(self, situation: Situation, memory: Memory) -> Finding:
        """Returns whether the condition holds; see :meth:`Condition.check`."""
        parts = tuple(each.check(situation, memory) for each in self.conditions)
        held = self._holds(part.held for part in parts)
        report = [part for part in parts if part.held == held]
        return Finding(self.kind, held, "; ".join(part.text for part in report), parts=parts)


@dataclass(frozen=True, init=False)
class AnyOf(Composition):
    """Holds if at least one of the conditions holds."""

    kind: ClassVar[str] = "any_of"
    _holds = staticmethod(any)


@dataclass(frozen=True, init=False)
class AllOf(Composition):
    """Holds if all of the conditions hold.

    Example:
        >>> from datetime import timedelta
        >>> from airflow_hops import Age, AllOf, NewRows
        >>> len(AllOf(Age(timedelta(days=7)), NewRows(10_000)).leaves())
        2
    """

    kind: ClassVar[str] = "all_of"
    _holds = staticmethod(all)


def _rounded(duration: timedelta) -> float:
    return round(duration / timedelta(days=1), 2)


def _days(duration: timedelta) -> str:
    days = _rounded(duration)
    return f"{days:g} day{'' if days == 1 else 's'}"
