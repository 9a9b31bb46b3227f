"""Whether a candidate may take a champion's place: the rule, and its reasons in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.contract.evaluation import Difference
from airflow_hops.runtime.evaluate.binary_metrics import HIGHER_IS_BETTER, Metrics
from airflow_hops.runtime.evaluate.class_metrics import ClassMetrics


@dataclass(frozen=True)
class BlessingRule:
    """The conditions that a candidate must meet.

    Attributes:
        metric: The metric by which candidate and champion are compared.
        minimum: Worst figure allowed of a metric, on every split (for a loss, the greatest).
        max_regression: How much worse than the champion a candidate may be on a split, beyond chance: the lower end of
            the 95% interval of its gain must not lie below minus this. By split, or one figure for all.
        min_improvement: How much better it must be on at least one split, beyond chance: the lower end of the interval
            must lie above this. None asks for no improvement.
    """

    metric: str = "auc"
    minimum: Mapping[str, float] | None = None
    max_regression: float | Mapping[str, float] = 0.01
    min_improvement: float | None = 0.0

    def __post_init__(self) -> None:
        for name in [self.metric, *(self.minimum or {})]:
            if name not in HIGHER_IS_BETTER:
                raise BadInput(f"metric {name!r} is unknown; expected one of {', '.join(HIGHER_IS_BETTER)}")
        margins = self.max_regression if isinstance(self.max_regression, Mapping) else {"all": self.max_regression}
        for split, margin in margins.items():
            if not margin >= 0:
                raise BadInput(f"max_regression is {margin} for {split!r}, expected 0 or more")

    def margin(self, split: str) -> float:
        """The regression that is allowed on a split; a split that the mapping leaves out has none allowed."""
        if isinstance(self.max_regression, Mapping):
            return float(self.max_regression.get(split, 0.0))
        return float(self.max_regression)


def bless(
    rule: BlessingRule,
    candidate: Mapping[str, Metrics | ClassMetrics],
    gains: Mapping[str, Difference | None] | None,
) -> tuple[bool, list[str]]:
    """Applies the rule.

    1. On every split, each metric of ``minimum`` reaches its minimum.
    2. Where a champion is: on every split, the candidate is not worse than it by more than ``max_regression`` (a test
       of non-inferiority at 2.5%, one-sided), and
    3. on at least one split, it is better by more than ``min_improvement`` (a test of superiority at the same level).

    A metric that is not defined on a split (a single class) cannot decide there; the reasons say so.

    Args:
        rule: What is asked.
        candidate: Its metrics by split.
        gains: Its gain over the champion by split; None where there is no champion.

    Returns:
        Whether it is blessed, and a sentence for every check.
    """
    reasons: list[str] = []
    blessed = True
    for split, metrics in candidate.items():
        for name, bound in (rule.minimum or {}).items():
            ok, sentence = _check_minimum(split, name, bound, metrics)
            blessed &= ok
            reasons.append(sentence)
    if gains is None:
        reasons.append("there is no champion to compare with")
        return blessed, reasons
    improved = False
    for split, gain in gains.items():
        if gain is None:
            reasons.append(f"{split}: not compared with the champion: {candidate[split].reason}")
            continue
        margin = rule.margin(split)
        enough = gain.low >= -margin
        blessed &= enough
        improved |= rule.min_improvement is not None and gain.low > rule.min_improvement
        reasons.append(
            f"{split}: {rule.metric} {_gain(gain)} against the champion; "
            + (f"not worse by more than {margin:g}" if enough else f"may be worse by more than {margin:g}: not allowed")
        )
    if rule.min_improvement is not None:
        blessed &= improved
        more = f" by more than {rule.min_improvement:g}" if rule.min_improvement else ""
        reasons.append(
            f"better than the champion{more}, beyond chance, on at least one split"
            if improved
            else f"on no split better than the champion{more} beyond chance: the champion stays"
        )
    return blessed, reasons


def _check_minimum(split: str, name: str, bound: float, metrics: Metrics | ClassMetrics) -> tuple[bool, str]:
    value: Any = getattr(metrics, name)
    if value is None:
        return True, f"{split}: {name} cannot be judged: {metrics.reason}"
    higher = HIGHER_IS_BETTER[name]
    ok = value >= bound if higher else value <= bound
    word = ("at least" if higher else "at most") if ok else ("below" if higher else "above")
    return ok, f"{split}: {name} {value:.4f} is {word} {bound:g}"


def _gain(gain: Difference) -> str:
    return f"{gain.difference:+.4f} (95% interval {gain.low:+.4f} to {gain.high:+.4f})"
