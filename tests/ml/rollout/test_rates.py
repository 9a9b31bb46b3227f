"""Rates of error of whole rollouts over models, clients and sizes: no comparison rolls back more than is stated."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from campaigns import campaign
from rollout_simulation import Point, simulate
from scipy.stats import binom

from airflow_hops.core.rollout.plan import Limits
from airflow_hops.ml.rollout.labels import LabelledAnswers, compare_labels

STATED = 0.01
"""The default ``significance``, of each comparison."""
ANSWERS = ("continuous", "leaves", "one_hot", "constant", "nan", "regression", "several")
CLIENTS = ("turns", "bursts", "failing", "retries", "batches", "heavy")
LABELS = ("balanced", "rare", "uneven", "none", "none")
BAD = {
    "failing": "errors: ",
    "slow": "latency_p50: ",
    "constant": "predictions: ",
    "not_finite": "predictions: ",
    "shifted": "predictions: ",
    "inaccurate": "labels: ",
}


def _point(random: np.random.Generator, most: int) -> Point:
    return Point(
        rows=int(np.exp(random.uniform(np.log(20), np.log(most)))),
        answers=str(random.choice(ANSWERS)),
        clients=str(random.choice(CLIENTS)),
        labels=str(random.choice(LABELS)),
        bake_s=float(random.choice([0.0, 60.0])),
        distance=0.2 if random.random() < 0.5 else None,
    )


@campaign("histories, most", (100, 40), (2000, 600))
def test_equal_canaries_are_rolled_back_as_seldom_as_is_stated(
    monkeypatch: pytest.MonkeyPatch, histories: int, most: int
) -> None:
    random, rolled_back = np.random.default_rng(7), Counter[str]()
    for seed in range(histories):
        decision = simulate(_point(random, most), seed, monkeypatch)
        if decision.decision == "rolled_back":
            rolled_back.update({reason.split(":")[0] for reason in decision.reasons})
    assert set(rolled_back) <= {"errors", "latency_p50", "latency_p99", "predictions", "labels"}
    assert max(rolled_back.values(), default=0) <= binom.ppf(1 - 1e-4, histories, STATED), rolled_back


@pytest.mark.parametrize("canary", BAD)
def test_bad_canaries_are_found(monkeypatch: pytest.MonkeyPatch, canary: str) -> None:
    point = Point(100, canary=canary, distance=0.2, labels="balanced" if canary == "inaccurate" else "none")
    for seed in range(5):
        decision = simulate(point, seed, monkeypatch)
        assert decision.decision == "rolled_back" and BAD[canary] in " ".join(decision.reasons), decision.reasons


def test_an_outage_at_100_percent_rolls_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stable version had fewer failures before, but at another time."""
    point = Point(100, "constant", "bursts", bake_s=60.0)
    ends = Counter(simulate(point, seed, monkeypatch).decision for seed in range(12))
    assert ends["left"] and ends["promoted"] and not ends["rolled_back"]


@pytest.mark.parametrize(("canary", "stable"), [(500, 50), (50, 500), (2000, 250)])
def test_loss_of_a_rare_class_ends_as_few_equal_canaries_as_is_stated(canary: int, stable: int) -> None:
    random = np.random.default_rng(3)

    def rows(size: int) -> LabelledAnswers:
        chance = np.clip(0.01 * np.exp(random.normal(size=size)), 1e-4, 0.99)
        labels = (random.random(size) < chance).astype(float)
        return LabelledAnswers(chance, labels, "binary", 0, np.arange(size), np.zeros(size, int))

    verdicts = [compare_labels(rows(canary), rows(stable), "rare", Limits(), STATED).verdict for _ in range(100)]
    assert verdicts.count("bad") <= binom.ppf(1 - 1e-4, len(verdicts), STATED)
