"""The proposed minimums: what passes them of models whose quality is known, on as many rows as a file has."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from airflow_hops.extensions.projects.ml.proposals import propose_minimum
from airflow_hops.ml.evaluate.blessing import BlessingRule, check_minimum
from airflow_hops.ml.metrics.judging import Judge

SHARES = [[0.5, 0.5], [0.9, 0.1], [0.34, 0.33, 0.33], [0.8, 0.15, 0.05], [0.9, 0.07, 0.03], [0.6, 0.2, 0.1, 0.07, 0.03]]


def _passes(random: Any, rows: int, shares: Any, distance: float) -> bool:
    """Draws rows of normal features by class, which the best model scores; the mean AUC is 0.82 at a distance of 1."""
    shares, means = np.array(shares), np.eye(len(shares)) * distance
    labels = random.choice(len(shares), rows, p=shares)
    labels[-len(shares) :] = range(len(shares))
    features = random.normal(size=(rows, len(shares))) + means[labels]
    p = shares * np.exp(-0.5 * ((features[:, None, :] - means) ** 2).sum(2))
    p = (p / p.sum(1, keepdims=True))[: rows // 5]
    problem: Any = "binary" if len(shares) == 2 else "multiclass"
    rule = BlessingRule.of(problem, {}, None, propose_minimum(Counter(labels.tolist())), None, None)
    held_out = labels[: rows // 5]
    figures = Judge(problem, rule.metric).figures(held_out, p[:, 1] if problem == "binary" else p, None)
    return check_minimum(rule, {"eval": figures})[0]


def _compare_with_truth(draws: int) -> None:
    random = np.random.default_rng(3)
    for rows, good, guessing in ((300, 0.85, 0.3), (823, 0.9, 0.2), (5000, 0.99, 0.1)):
        for shares in SHARES:
            result = [np.mean([_passes(random, rows, shares, d) for _ in range(draws)]) for d in (1, 0)]
            assert result[0] >= good and result[1] <= guessing, (rows, shares, result)


def test_good_models_pass_and_guesses_do_not() -> None:
    _compare_with_truth(25)


@pytest.mark.scheduled(part="campaigns")
def test_good_models_pass_and_guesses_do_not_in_many_draws() -> None:
    _compare_with_truth(400)
