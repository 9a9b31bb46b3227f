"""The gate's decisions over random data sets: what passes, what does not, and what a refusal says."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from campaigns import campaign
from sklearn import metrics as sklearn

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.evaluate.blessing import BlessingRule, bless, check_minimum
from airflow_hops.ml.metrics.class_metrics import class_metrics
from airflow_hops.ml.metrics.judging import METRICS, Judge

EVERY_CLASS = BlessingRule.of("multiclass", {}, None, {"worst_auc": 0.6}, None, 0.0)


def _draw(random: Any, counts: list[int], areas: list[float]) -> tuple[Any, Any]:
    """Draws labels, and scores by which each class has its true AUC against the others."""
    labels = np.repeat(np.arange(len(counts)), counts)
    distance = np.sqrt(2) * np.array([NormalDist().inv_cdf(area) for area in areas])
    scores = random.normal(size=(len(labels), len(counts)))
    scores[np.arange(len(labels)), labels] += distance[labels]
    return labels, np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True).max()


def _passes(random: Any, counts: list[int], areas: list[float], draws: int) -> float:
    passed = [
        check_minimum(EVERY_CLASS, {"eval": class_metrics(*_draw(random, counts, areas))})[0] for _ in range(draws)
    ]
    return float(np.mean(passed))


@campaign("draws", 100, 3000)
def test_class_with_few_rows_does_not_refuse_a_good_model(draws: int) -> None:
    random = np.random.default_rng(0)
    for _ in range(draws // 10):
        counts = [int(count) for count in np.exp(random.uniform(0, 5, random.integers(3, 9)))]
        # By several classes, each is refused in 2.5% of draws if it is at the minimum, and hardly ever at 0.7.
        share = _passes(random, [*counts, 100], [random.uniform(0.7, 0.95)] * (len(counts) + 1), 10)
        assert share >= 0.8, counts
    assert _passes(random, [3, 1, 12, 150], [0.85] * 4, draws) >= 0.95
    assert _passes(random, [100, 100, 300], [0.45, 0.9, 0.9], draws) <= 0.15
    assert _passes(random, [250, 300, 500], [0.5, 0.9, 0.9], draws) <= 0.1


def test_refusal_for_a_class_names_it_with_its_rows() -> None:
    labels, shares = _draw(np.random.default_rng(1), [4, 200, 300], [0.35, 0.3, 0.9])
    figures = class_metrics(labels, shares, ["rare", "confused", "clear"])
    _, reasons = check_minimum(EVERY_CLASS, {"eval": figures})
    confused = figures.classes[1]
    assert reasons == [
        f"eval: worst_auc: class 'confused', 200 rows, has an AUC of {confused.auc:.4f}, whose 95% interval ends at "
        f"{confused.auc_high:.4f}, below 0.6; add rows of it, or features that tell it from the others, or join it "
        "with another class in prepare()"
    ]


def _figures(problem: str, labels: Any, predictions: Any) -> dict[str, float]:
    if problem == "regression":
        return {
            "rmse": sklearn.root_mean_squared_error(labels, predictions),
            "mae": sklearn.mean_absolute_error(labels, predictions),
            "r2": sklearn.r2_score(labels, predictions),
            "median_absolute_error": sklearn.median_absolute_error(labels, predictions),
        }
    return {
        "auc": sklearn.roc_auc_score(labels, predictions),
        "average_precision": sklearn.average_precision_score(labels, predictions),
        "accuracy": sklearn.accuracy_score(labels, predictions >= 0.5),
        "log_loss": sklearn.log_loss(labels, predictions),
        "brier": sklearn.brier_score_loss(labels, predictions),
    }


def test_decision_follows_from_the_figures() -> None:
    random = np.random.default_rng(2)
    decisions = []
    for problem in ("binary", "regression") * 60:
        metrics, rows = METRICS[problem], int(random.integers(10, 80))
        labels = np.arange(rows) % 2 if problem == "binary" else random.normal(50, 20, rows)
        noise = random.uniform(0.05, 0.95, rows) if problem == "binary" else random.normal(50, 20, rows)
        mine, theirs = (labels * share + noise * (1 - share) for share in random.uniform(0, 0.9, 2))
        expected, champion_figures = _figures(problem, labels, mine), _figures(problem, labels, theirs)
        asked = random.choice(sorted(expected), random.integers(0, 3), replace=False)
        minimum = {str(name): float(np.clip(expected[name] * random.choice([0.7, 1.3]), -9, 0.999)) for name in asked}
        margin, better = random.choice([0.0, 0.05, 5.0]), random.choice([None, 0.0, 0.01])
        rule = BlessingRule.of(problem, {}, None, minimum, margin, better, better_than_constant=False)
        judge = Judge(problem, rule.metric)
        gain = judge.gain(labels, mine, theirs, None)
        assert gain is not None
        mine_and_theirs = ({"eval": judge.figures(labels, each, None)} for each in (mine, theirs))
        figures, champion = mine_and_theirs
        blessed, reasons = bless(rule, figures, {"eval": gain}, champion)

        sign = {name: 1 if higher else -1 for name, higher in metrics.higher_is_better.items()}
        assert gain.difference == pytest.approx(
            sign[rule.metric] * (expected[rule.metric] - champion_figures[rule.metric])
        )
        failed = [name for name, bound in minimum.items() if sign[name] * (expected[name] - bound) < 0]
        unmet = len(failed) + (gain.low < -margin) + (better is not None and not gain.low > better)
        assert blessed == (unmet == 0)
        assert len(reasons) == len(minimum) + 1 + (better is not None)
        words = ("is below", "is above", "not allowed", "the champion stays")
        assert [any(word in reason for word in words) for reason in reasons] == [n < unmet for n in range(len(reasons))]
        assert all(any(reason.startswith(f"eval: {name} ") for reason in reasons[:unmet]) for name in failed)
        decisions.append(blessed)
    assert 10 < sum(decisions) < 110


IMPOSSIBLE = [math.nan, math.inf, -math.inf, True, "0.6", None]


@pytest.mark.parametrize("problem", METRICS)
def test_minimum_must_be_a_value_that_the_metric_can_have(problem: Any) -> None:
    for name, higher in METRICS[problem].higher_is_better.items():
        beyond = 1.01 if higher else -0.01
        for bound in (*IMPOSSIBLE, beyond):
            with pytest.raises(BadInput, match=f"minimum of '{name}' is .*, expected a finite number"):
                BlessingRule.of(problem, {}, None, {name: bound}, None, None)
        for bound in (0.5, 0, 1) if name != "r2" else (-3.0, 1.0):
            BlessingRule.of(problem, {}, None, {name: bound}, None, None)
        if higher and name != "r2":
            with pytest.raises(BadInput, match=r"is 60, expected a finite number, 0 to 1 \(60% is 0.6\)"):
                BlessingRule.of(problem, {}, None, {name: 60}, None, None)
    with pytest.raises(BadInput, match="min_improvement is nan"):
        BlessingRule(min_improvement=math.nan)
