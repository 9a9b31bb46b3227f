"""The plan of a back-test: history, periods and policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.metrics import METRICS
from airflow_hops.core.names import suggestion
from airflow_hops.core.retraining.conditions import Age, AnyOf, Drift, PipelineFault
from airflow_hops.core.retraining.performance import Performance
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.times import as_utc

NEVER = "never"
BUILT_IN = (NEVER, "monthly", "weekly", "drift", "performance")

_MOST = 10_000
"""Maximum number of periods."""

_WHEN = {"monthly": Age(timedelta(days=27.5)), "weekly": Age(timedelta(days=6.5)), "drift": Drift()}
"""Half a day of slack, since data rarely ends to the second; a month has at least 28 days."""


@dataclass(frozen=True)
class BacktestPlan:
    """The history and the policies to try on it.

    Attributes:
        model_name: The model, whose champion's steps are repeated.
        policies: Policies by name; None for the one that never retrains.
        every: Length of a period; policies decide at its end.
        first: Length of the first model's training window, including :attr:`shortest_delay`; None for the length of the
            champion's.
        label_delays: Delays of labels after their rows. Policies that depend on labels are tried with each, others with
            the shortest.
        price: Cost of a training, in the metric's unit on average over the whole history.

    Raises:
        BadInput: a value is out of range.
    """

    model_name: str
    start: datetime
    end: datetime
    policies: Mapping[str, RetrainingPolicy | None]
    every: timedelta = timedelta(days=7)
    first: timedelta | None = None
    label_delays: Sequence[timedelta] = (timedelta(0),)
    price: float = 0.0

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise BadInput(f"from is {in_days(self.start)} and to is {in_days(self.end)}, expected from before to")
        for name, length in (("every", self.every), ("first", self.first)):
            if length is not None and length <= timedelta(0):
                raise BadInput(f"{name} is {length}, expected a duration of more than 0")
        if not self.label_delays or min(self.label_delays) < timedelta(0):
            raise BadInput(f"label_delays is {list(map(str, self.label_delays))}, expected durations of 0 or more")
        if not 0 <= self.price < float("inf"):
            raise BadInput(f"price is {self.price:g}, expected a number of 0 or more")
        if self.policies.get(NEVER) is not None:
            raise BadInput(f"policy {NEVER!r} is one that retrains; rename it: {NEVER!r} is the baseline of the others")
        windows = {each.window for policy in self.policies.values() for each in _of_kind(policy, Performance)}
        if len(windows) > 1:
            report = ", ".join(sorted(in_words(each) if each else "none" for each in windows))
            raise BadInput(f"Performance has the windows {report} in these policies; run a back-test for each of them")

    @property
    def shortest_delay(self) -> timedelta:
        """Delay of labels for policies that do not depend on them; their models train on labelled rows, too."""
        return min(self.label_delays)

    def ticks(self, first: timedelta) -> list[datetime]:
        """Returns the end of the first model's training data, and the ends of the following periods.

        ``first`` is the length of the first training window, including the shortest delay of labels.

        Raises:
            BadInput: there are fewer than two periods, or the first labels come after the first model.
        """
        if first <= max(self.label_delays):
            raise BadInput(
                f"the first model would learn from the first {in_words(first)}, but labels come after "
                f"{in_words(max(self.label_delays))}; expected a longer first, or a shorter delay"
            )
        periods = int((self.end - self.start - first) / self.every)
        if periods > _MOST:
            raise BadInput(f"every is {self.every}, of which the history has {periods:,}; expected at most {_MOST:,}")
        if periods < 2:
            until = in_days(self.start + first)
            raise BadInput(
                f"the history from {in_days(self.start)} to {in_days(self.end)} is too short: the first model learns "
                f"until {until}, and {max(periods, 0)} whole periods of {in_words(self.every)} follow; expected at "
                "least two. Begin earlier, end later, or shorten first or every"
            )
        return [self.start + first + number * self.every for number in range(periods + 1)]

    def tried(self) -> Iterator[tuple[str, RetrainingPolicy | None, timedelta | None]]:
        """Yields names, policies and label delays, including :data:`NEVER`; policies that use labels once per delay."""
        policies = dict(self.policies)
        if None not in policies.values():
            policies = {NEVER: None, **policies}
        for name, policy in policies.items():
            if _of_kind(policy, Performance):
                yield from ((f"{name}@{in_words(delay)}", policy, delay) for delay in dict.fromkeys(self.label_delays))
            else:
                yield name, policy, None

    @property
    def needs_effects(self) -> bool:
        """Whether a policy uses the effects of drift, which are slow to compute."""
        return any(each.min_effect is not None for policy in self.policies.values() for each in _of_kind(policy, Drift))

    @property
    def measured_by(self) -> dict[str, object]:
        """How policies measure performance; estimates are slow to compute."""
        results = [each for policy in self.policies.values() for each in _of_kind(policy, Performance)]
        windows = {each.window.total_seconds() for each in results if each.window is not None}
        return {
            "estimates": any(each.estimates for each in results),
            **({"window_s": windows.pop()} if windows else {}),
        }

    def check_names(self, model: ModelProperties) -> None:
        """Raises BadInput if the model lacks features or metrics that a policy names, before anything is trained."""
        features = model.inputs or model.features or ()
        metrics = tuple(METRICS.get(model.problem or "", ()))
        for name, policy in self.policies.items():
            for drift in _of_kind(policy, Drift) if features else ():
                for feature in drift.features if drift.features != "*" else ():
                    _check_known(f"policy {name!r}: Drift names the feature", feature, features)
            for performance in _of_kind(policy, Performance) if metrics else ():
                _check_known(f"policy {name!r}: Performance names the metric", performance.metric, metrics)


def named_policies(names: Sequence[str], model: ModelProperties) -> dict[str, RetrainingPolicy | None]:
    """Returns policies by their names in :data:`BUILT_IN`; the champion determines the metric of ``performance``.

    Raises:
        BadInput: there is no such policy, or the champion has no problem type.
    """
    return {name: _named(name, model) for name in ([names] if isinstance(names, str) else names)}


def _named(name: str, model: ModelProperties) -> RetrainingPolicy | None:
    if name not in BUILT_IN:
        known = ", ".join(BUILT_IN)
        raise BadInput(
            f"there is no policy {name!r}; expected one of {known}, or policies by name, such as "
            f"{{'mine': RetrainingPolicy(…)}}{suggestion(name, BUILT_IN)}"
        )
    if name == NEVER:
        return None
    if name == "performance" and (model.problem or "") not in METRICS:
        raise BadInput(
            "policy 'performance': the champion has no problem type, so it has no default metric; use your own policy"
        )
    when = _WHEN.get(name) or Performance(next(iter(METRICS[model.problem or ""])), drop=0.0)
    # Without Rejected, which waits for a person to review rejected candidates: a back-test has nobody.
    return RetrainingPolicy(when=when, unless=AnyOf(PipelineFault()))


def _of_kind(policy: RetrainingPolicy | None, kind: type[Any]) -> list[Any]:
    """Returns the elementary conditions of a kind in a policy."""
    leaves = [*policy.when.leaves(), *policy.unless.leaves()] if policy else []
    return [each for each in leaves if isinstance(each, kind)]


def _check_known(what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise BadInput(f"{what} {name!r}; the model has {', '.join(known)}{suggestion(name, known)}")


def moment(name: str, value: str | datetime) -> datetime:
    """Parses an ISO 8601 time, UTC if it has no time zone; ``name`` is for the message of BadInput."""
    try:
        return as_utc(str(value))
    except (ValueError, OverflowError):
        raise InvalidArgument(name, value, ", expected a time in ISO 8601, like 2013-04-01") from None


def in_words(duration: timedelta) -> str:
    """Formats a duration like ``7d`` or ``12h``."""
    days = duration / timedelta(days=1)
    return f"{days:g}d" if days == int(days) else f"{duration / timedelta(hours=1):g}h"


def in_days(at: datetime) -> str:
    """Formats a time as a date, with the time of day unless it is midnight."""
    return at.strftime("%Y-%m-%d" if at.time() == at.time().min else "%Y-%m-%d %H:%M")
