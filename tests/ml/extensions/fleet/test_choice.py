"""Which model answers a segment: against a brute force of the rule, and as good as the pooled model on new rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, Ridge

from airflow_hops.extensions.fleet.core.options import FleetOptions
from airflow_hops.extensions.fleet.ml.columns import FOLDS, TrainingRows
from airflow_hops.extensions.fleet.ml.learners import learner_of
from airflow_hops.extensions.fleet.ml.segments import choose

STRENGTHS = (10.0, 100.0, 1000.0)
WIDTH = 3


def drawn(generator: np.random.Generator, problem: str, rows: int, truth: np.ndarray, weighted: bool) -> TrainingRows:
    matrix = generator.normal(size=(rows, WIDTH))
    scores = truth[0] + matrix @ truth[1:] + generator.normal(size=rows)
    labels = scores if problem == "regression" else (scores > 0).astype(float)
    weights = generator.uniform(0.2, 3.0, rows) if weighted else np.ones(rows)
    return TrainingRows(matrix, labels, weights, FOLDS * np.arange(rows) + generator.integers(0, FOLDS, rows))


def fitted(problem: str, rows: TrainingRows, strength: float | None, pooled: np.ndarray) -> np.ndarray:
    """Weights by scikit-learn, or by a general minimizer of the loss and of the distance from the pooled weights."""
    if strength is None:
        estimator = Ridge(1.0) if problem == "regression" else LogisticRegression(C=1.0, tol=1e-10, max_iter=2000)
        estimator.fit(rows.matrix, rows.labels, sample_weight=rows.weights)
        return np.concatenate([np.ravel(estimator.intercept_), np.ravel(estimator.coef_)])
    design = np.concatenate([np.ones((len(rows), 1)), rows.matrix], axis=1)

    def loss(weights: np.ndarray) -> float:
        scores, distance = design @ weights, 0.5 * strength * ((weights - pooled) ** 2).sum()
        if problem == "regression":
            return float(0.5 * (rows.weights * (rows.labels - scores) ** 2).sum() + distance)
        return float((rows.weights * (np.logaddexp(0, scores) - rows.labels * scores)).sum() + distance)

    return minimize(loss, pooled, method="BFGS", options={"gtol": 1e-9}).x


def row_losses(problem: str, weights: np.ndarray, rows: TrainingRows) -> list[float]:
    losses = []
    for values, label in zip(rows.matrix, rows.labels, strict=True):
        score = weights[0] + float(values @ weights[1:])
        if problem == "regression":
            losses.append((score - label) ** 2)
        else:
            losses.append(math.log1p(math.exp(-score if label else score)))
    return losses


def brute_force(problem: str, rows: TrainingRows, pooled: np.ndarray, errors: float) -> tuple[str, float, float]:
    """State and loss by the rule as the documentation has it, and how near the choice was."""
    losses: dict[Any, list[float]] = {name: [] for name in ("pooled", None, *STRENGTHS)}
    weights: list[float] = []
    for fold in range(FOLDS):
        held, others = rows.where(rows.folds == fold), rows.where(rows.folds != fold)
        weights += held.weights.tolist()
        losses["pooled"] += row_losses(problem, pooled, held)
        for strength in (None, *STRENGTHS):
            losses[strength] += row_losses(problem, fitted(problem, others, strength, pooled), held)
    total = sum(weights)
    effective = total**2 / sum(weight**2 for weight in weights)
    mean = {name: sum(w * x for w, x in zip(weights, own, strict=True)) / total for name, own in losses.items()}
    best, state, margins = mean["pooled"], "pooled", []
    for strength in (None, *STRENGTHS):
        gains = [a - b for a, b in zip(losses["pooled"], losses[strength], strict=True)]
        gain = mean["pooled"] - mean[strength]
        spread = sum(w * (x - gain) ** 2 for w, x in zip(weights, gains, strict=True)) / total
        margin = gain - errors * math.sqrt(spread / (effective - 1))
        margins.append(abs(margin))
        if margin > 0 and (state == "pooled" or mean[strength] < best):
            best, state = mean[strength], "own" if strength is None else "continued"
    return state, best, min(margins)


@pytest.mark.parametrize("problem", ["regression", "binary"])
def test_choice_is_that_of_a_brute_force(problem: Any) -> None:
    states = []
    for seed in range(40):
        generator = np.random.default_rng(seed)
        pooled = generator.normal(size=1 + WIDTH)
        truth = pooled + generator.choice([0.0, 0.15, 0.4, 1.5]) * generator.normal(size=1 + WIDTH)
        rows = drawn(generator, problem, int(generator.integers(40, 250)), truth, weighted=seed % 2 == 1)
        errors = float(generator.choice([0.5, 2.0, 3.0]))
        expected, loss, margin = brute_force(problem, rows, pooled, errors)
        if margin < 1e-5 or any(len({*rows.labels[rows.folds != fold]}) < 2 for fold in range(FOLDS)):
            continue
        learner = learner_of("linear", problem, 2, 0)
        choice = choose(learner, rows, dict.fromkeys(range(FOLDS), pooled[np.newaxis]), 30, errors)
        assert (choice.state, choice.loss) == (expected, pytest.approx(loss, rel=1e-4)), seed
        assert f"on {len(rows)} held-out rows" in choice.reason
        states.append(choice.state)
    assert {"pooled", "own", "continued"} <= {*states} and len(states) > 30


def test_segments_like_all_others_rarely_leave_the_pooled_model_by_default() -> None:
    """At two standard errors, 6% of them would."""
    learner, left = learner_of("linear", "regression", 2, 0), 0
    for seed in range(400):
        generator = np.random.default_rng(seed)
        pooled = generator.normal(size=1 + WIDTH)
        rows = drawn(generator, "regression", 60, pooled, weighted=False)
        by_fold = dict.fromkeys(learner.folds, pooled[np.newaxis])
        left += choose(learner, rows, by_fold, FleetOptions.min_rows, FleetOptions.standard_errors).state != "pooled"
    assert left <= 6


@pytest.mark.parametrize("problem", ["regression", "binary"])
@pytest.mark.parametrize("own", [0.0, 0.1, 0.3, 1.0])
def test_every_tenth_of_a_generated_fleet_is_as_good_as_pooled(problem: Any, own: float) -> None:
    """On new rows of segments of 20 to 2,000, however much they differ."""
    learner, tenths = learner_of("linear", problem, 2, 0), 10
    gains: list[list[float]] = [[] for _ in range(tenths)]
    pooled_losses: list[list[float]] = [[] for _ in range(tenths)]
    for seed in range(3):
        generator = np.random.default_rng([seed, round(10 * own)])
        common = generator.normal(size=1 + WIDTH)
        sizes = [int(20 * 100 ** (tenth / (tenths - 1))) for tenth in range(tenths) for _ in range(10)]
        segments = []
        for size in sizes:
            truth = common + own * generator.normal(size=1 + WIDTH)
            segments.append([drawn(generator, problem, rows, truth, weighted=False) for rows in (size, 400)])
        every = TrainingRows(
            *(np.concatenate([getattr(train, name) for train, _ in segments]) for name in vars(every_of(segments)))
        )
        pooled_by_fold = {fold: learner.fit(every.where(every.folds != fold)) for fold in learner.folds}
        pooled = learner.fit(every)
        for number, (train, new) in enumerate(segments):
            choice = choose(learner, train, pooled_by_fold, 30, 3.0)
            model = pooled if choice.strategy is None else learner.fit(train, choice.strategy, pooled)
            of_pooled, answered = learner.losses(pooled, new).mean(), learner.losses(model, new).mean()
            gains[number // 10].append(float(of_pooled - answered))
            pooled_losses[number // 10].append(float(of_pooled))
    for tenth in range(tenths):
        assert np.mean(gains[tenth]) >= -0.002 * np.mean(pooled_losses[tenth]), tenth
    if own == 1.0:
        assert np.mean(gains[-1]) > 0.3 * np.mean(pooled_losses[-1])


def every_of(segments: list[list[TrainingRows]]) -> TrainingRows:
    return segments[0][0]
