"""Decides whether a candidate may replace a champion, with reasons."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.core.artifacts.target import BINARY, Problem
from airflow_hops.core.errors import BadInput
from airflow_hops.core.evaluation import Difference
from airflow_hops.core.metrics import check_minimum_value
from airflow_hops.core.names import check_known
from airflow_hops.ml.metrics.class_metrics import ClassFigures, ClassMetrics
from airflow_hops.ml.metrics.custom_metrics import CustomMetric
from airflow_hops.ml.metrics.judging import METRICS
from airflow_hops.ml.metrics.metrics import Metrics

MAX_REGRESSION = 0.01
"""Default tolerance. For metrics in the label's units and custom metrics it is a share of the champion's figure."""

_THAN = "than a constant answer, beyond chance: gain in"
_WORSE = "check its label and features, or calibrate it: weights of classes and resampling move its probabilities"
_MORE = {
    "log_loss": "add rows of the rarer classes, or features",
    "r2": "add rows or features, or predict the logarithm of a label with few very large values",
}
_LIFT = "for scores that are not probabilities or means, set better_than_constant=False"


@dataclass(frozen=True)
class BlessingRule:
    """Conditions that a candidate must meet.

    Attributes:
        metric: The metric by which candidate and champion are compared.
        minimum: Worst allowed figure by metric, on every split (for a loss, the greatest).
        max_regression: Maximum loss against the champion on a split, beyond chance: the lower end of
            the 95% interval of its gain must not lie below minus this. By split, or one figure for all; None for
            :data:`MAX_REGRESSION`.
        min_improvement: Minimum gain on at least one split, beyond chance: the lower end of the interval
            must lie above this. None requires no improvement.
        better_than_constant: Whether the candidate must be better than a constant answer, beyond chance.
        higher_is_better: Known metrics, and whether higher figures are better.
        relative: Metrics for which :data:`MAX_REGRESSION` is a share of the champion's figure.
        custom: User-defined metrics, whose figures may be any number.
    """

    metric: str = "auc"
    minimum: Mapping[str, float] = field(default_factory=dict)
    max_regression: float | Mapping[str, float] | None = None
    min_improvement: float | None = 0.0
    better_than_constant: bool = True
    higher_is_better: Mapping[str, bool] = field(default_factory=lambda: METRICS[BINARY].higher_is_better)
    relative: Collection[str] = ()
    custom: Collection[str] = ()

    def __post_init__(self) -> None:
        for name in [self.metric, *self.minimum]:
            check_known("metric", name, self.higher_is_better)
        if self.min_improvement is not None and not math.isfinite(self.min_improvement):
            raise BadInput(f"min_improvement is {self.min_improvement}, expected a finite number, or None")
        for name, bound in self.minimum.items():
            check_minimum_value(name, bound, name in self.custom)

    @classmethod
    def of(
        cls,
        problem: Problem,
        custom: Mapping[str, CustomMetric],
        metric: str | None,
        minimum: Mapping[str, float] | None,
        max_regression: float | Mapping[str, float] | None,
        min_improvement: float | None,
        better_than_constant: bool = True,
    ) -> BlessingRule:
        """Returns the rule for models of a problem; None stands for the problem's default.

        Raises:
            BadInput: the problem does not have a metric, a margin is below 0, or the metric cannot reach its minimum.
        """
        known = METRICS[problem]
        higher = {**known.higher_is_better, **{name: own.higher_is_better for name, own in custom.items()}}
        asked = known.minimum if minimum is None else minimum
        for name in [metric or known.metric, *asked]:
            check_known(f"metric for the problem {problem!r}", name, higher)
        return cls(
            metric or known.metric,
            asked,
            max_regression,
            min_improvement,
            better_than_constant,
            higher_is_better=higher,
            relative=[*known.relative, *custom],
            custom=list(custom),
        )

    def margin(self, split: str, champion: Metrics | None = None) -> float:
        """Returns the allowed regression on a split; 0 for splits that the mapping leaves out."""
        if isinstance(self.max_regression, Mapping):
            return float(self.max_regression.get(split, 0.0))
        if self.max_regression is not None:
            return float(self.max_regression)
        figure = champion.value(self.metric) if champion is not None and self.metric in self.relative else 1.0
        return MAX_REGRESSION * abs(figure or 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Returns the rule as JSON."""
        return {
            "metric": self.metric,
            "minimum": dict(self.minimum),
            "max_regression": self.max_regression,
            "min_improvement": self.min_improvement,
            "better_than_constant": self.better_than_constant,
            "higher_is_better": dict(self.higher_is_better),
        }


def bless(
    rule: BlessingRule,
    candidate: Mapping[str, Metrics],
    gains: Mapping[str, Difference | str | None] | None,
    champion: Mapping[str, Metrics | None] | None = None,
) -> tuple[bool, list[str]]:
    """Applies the rule; returns whether the candidate is blessed, and a sentence for every check, unmet ones first.

    1. On every split, each metric of ``minimum`` reaches its minimum; of ``worst_auc``, the 95% interval of each class.
    2. If there is a champion, the candidate is on no split worse than it by more than ``max_regression`` (a one-sided
       test of non-inferiority at 2.5%), and
    3. on at least one split, it is better by more than ``min_improvement`` (a test of superiority at the same level).
    4. By log loss or squared error, the candidate is better than a constant answer, the classes' shares or the mean
       label: on at least one split beyond chance, and on no split worse beyond chance.

    A metric that is undefined on a split (a single class) cannot decide there, which is among the reasons. A metric
    that is undefined on all splits fails its minimum, and a gain that is undefined on all splits fails the comparison,
    which would otherwise check nothing. Metrics and gains over the champion are by split; ``gains`` is None without a
    champion, and text says why a champion could not be compared, which refuses the candidate.
    """
    checks = _minimums(rule, candidate)
    constant = _better_than_constant(candidate) if rule.better_than_constant else []
    if gains is None:
        return _outcome([*checks, *constant, (True, "there is no champion to compare with")])
    improved = False
    for split, gain in gains.items():
        if isinstance(gain, str):
            checks.append((False, f"{split}: not compared with the champion: {gain}"))
            continue
        if gain is None:
            checks.append((True, f"{split}: not compared with the champion: {_why(rule.metric, candidate[split])}"))
            continue
        margin = rule.margin(split, champion[split] if champion else None)
        enough = gain.low >= -margin
        improved |= rule.min_improvement is not None and gain.low > rule.min_improvement
        worse = f"not worse by more than {margin:g}" if enough else f"may be worse by more than {margin:g}: not allowed"
        name = rule.metric if rule.higher_is_better[rule.metric] else f"gain in {rule.metric}"
        checks.append((enough, f"{split}: {name} {_gain(gain)} against the champion; {worse}"))
    if all(gain is None for gain in gains.values()):
        none = f"compared with the champion by {rule.metric} on no split: name another metric or other splits"
        checks.append((False, none))
    elif rule.min_improvement is not None:
        more = f" by more than {rule.min_improvement:g}" if rule.min_improvement else ""
        better = (
            f"better than the champion{more}, beyond chance, on at least one split"
            if improved
            else f"on no split better than the champion{more} beyond chance: the champion stays"
        )
        checks.append((improved, better))
    return _outcome([*checks, *constant])


def check_minimum(rule: BlessingRule, candidate: Mapping[str, Metrics]) -> tuple[bool, list[str]]:
    """Checks only the first condition of :func:`bless`; returns the same."""
    return _outcome(_minimums(rule, candidate))


def _outcome(checks: Sequence[tuple[bool, str]]) -> tuple[bool, list[str]]:
    """Returns whether all checks are met, and their sentences, unmet ones first."""
    return all(ok for ok, _ in checks), [sentence for _, sentence in sorted(checks, key=lambda check: check[0])]


def _minimums(rule: BlessingRule, candidate: Mapping[str, Metrics]) -> list[tuple[bool, str]]:
    checks = [
        _check_minimum(rule, split, name, bound, metrics)
        for split, metrics in candidate.items()
        for name, bound in rule.minimum.items()
    ]
    checks += [
        (False, f"minimum asks for {name}, which is defined on no split: name another metric there")
        for name in rule.minimum
        if all(metrics.value(name) is None for metrics in candidate.values())
    ]
    return checks


def _better_than_constant(candidate: Mapping[str, Metrics]) -> list[tuple[bool, str]]:
    gains = {split: metrics.over_constant for split, metrics in candidate.items() if metrics.over_constant is not None}
    words = {split: f"{_THAN} {gain.metric} {_gain(gain)}" for split, gain in gains.items()}
    if worse := [split for split, gain in gains.items() if gain.high < 0]:
        return [(False, f"{split}: worse {words[split]}; {_WORSE}; {_LIFT}") for split in worse]
    best = max(gains, key=lambda split: gains[split].low, default=None)
    if best is None:
        return [(False, f"it is not known whether the model is better than a constant answer; {_LIFT}")]
    if gains[best].low > 0:
        return [(True, f"{best}: better {words[best]}")]
    return [(False, f"on no split better {words[best]} on {best!r}; {_MORE[gains[best].metric]}; {_LIFT}")]


def _check_minimum(rule: BlessingRule, split: str, name: str, bound: float, metrics: Metrics) -> tuple[bool, str]:
    value = metrics.value(name)
    if value is None:
        return True, f"{split}: {name} cannot be judged: {_why(name, metrics)}"
    if name == "worst_auc" and isinstance(metrics, ClassMetrics):
        return _check_every_class(split, bound, metrics.classes)
    higher = rule.higher_is_better[name]
    ok = value >= bound if higher else value <= bound
    word = ("at least" if higher else "at most") if ok else ("below" if higher else "above")
    return ok, f"{split}: {name} {_number(value)} is {word} {bound:g}"


def _check_every_class(split: str, bound: float, classes: Sequence[ClassFigures]) -> tuple[bool, str]:
    """Checks that no class's AUC lies below a bound beyond chance: the lowest of several is low where rows are few."""
    scored = [
        (figures.auc_high, figures.auc, figures)
        for figures in classes
        if figures.auc is not None and figures.auc_high is not None
    ]
    high, value, figures = min(scored, key=lambda each: each[:2])
    if high >= bound:
        return True, f"{split}: worst_auc: the 95% interval of every class's AUC reaches {bound:g}"
    return False, (
        f"{split}: worst_auc: class {figures.name!r}, {figures.rows} rows, has an AUC of {_number(value)}, whose 95% "
        f"interval ends at {_number(high)}, below {bound:g}; add rows of it, or features that tell it from the others, "
        "or join it with another class in prepare()"
    )


def _why(name: str, metrics: Metrics) -> str:
    """Returns why a figure is missing."""
    return metrics.reason or f"{name} is not defined on its rows"


def _number(value: float, sign: str = "") -> str:
    """Formats a number with four decimals, or with six digits from 100 on."""
    return f"{value:{sign}.4f}" if abs(value) < 100 else f"{value:{sign}.6g}"


def _gain(gain: Difference) -> str:
    difference, low, high = (_number(value, "+") for value in (gain.difference, gain.low, gain.high))
    return f"{difference} (95% interval {low} to {high})"
