"""Permutation importance, with intervals (Breiman, "Random Forests", 2001; Fisher, Rudin and Dominici, 2019)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from airflow_hops.core.artifacts.target import MULTICLASS, REGRESSION, Problem
from airflow_hops.core.metrics import Interval
from airflow_hops.extensions.explain.ml.shapley import Z95, Array, Predict

CARRIES = 0.9
"""Share of all importance from which one feature is said to carry a model."""
_LEVEL = 0.05


Importance = tuple[Interval, bool]
"""Rise of the mean loss with its 95% interval; whether it is above 0 at 5%, corrected for the number of features."""


def permutation_importance(
    predict: Predict,
    arrays: Mapping[str, Array],
    loss: Callable[[Array], Array],
    *,
    features: Sequence[str],
    repeats: int,
    seed: int = 0,
    weights: Array | None = None,
) -> dict[str, Importance]:
    """Computes by how much the mean loss rises if the values of one feature are shuffled among the rows.

    The rows are a sample twice over: as receivers of a value, and as its donors. The interval counts the influence of
    each row as both (the variance of a two-sample U-statistic; Hoeffding, 1948), and what the shuffles add. A feature's
    shuffles depend on seed and name alone, so two models see the same, and another feature changes nothing.

    Args:
        predict: The model.
        arrays: Raw features by name, ``[rows]`` or ``[rows, width]``.
        loss: Returns each row's loss, ``[rows]``, of the model's predictions.
        features: Features to shuffle.
        repeats: Shuffles of each feature.
        seed: Seed of the shuffles.
        weights: Weights of the rows, ``[rows]``, or None.
    """
    losses = loss(predict(arrays))
    rows = len(losses)
    w = np.ones(rows) if weights is None else weights
    chance = NormalDist().inv_cdf(1 - _LEVEL / max(1, len(features)))
    result = {}
    for name in features:
        random = np.random.default_rng([seed, zlib.crc32(name.encode())])
        donors = [random.permutation(rows) for _ in range(repeats)]
        rises = np.stack([loss(predict({**arrays, name: arrays[name][order]})) - losses for order in donors])
        mean = float(np.average(rises.mean(axis=0), weights=w))
        shares = w * (rises - mean) / (w.sum() * repeats)
        influence = shares.sum(axis=0)
        for order, share in zip(donors, shares, strict=True):
            influence[order] += share
        error = float(np.sqrt(np.square(influence).sum() * rows / max(1, rows - 1)))
        result[name] = (mean, mean - Z95 * error, mean + Z95 * error), mean > chance * error
    return result


def row_loss(problem: Problem, labels: Array) -> tuple[str, Callable[[Array], Array]]:
    """Returns the loss in words, and the function of predictions that gives each row's.

    Squared errors are bounded for probabilities, so that a few confident mistakes do not decide, as in a log loss.
    """
    if problem == REGRESSION:
        return "squared error", lambda predicted: np.square(predicted - labels)
    if problem != MULTICLASS:
        return "Brier score", lambda predicted: np.square(predicted - labels)

    def of_classes(predicted: Array) -> Array:
        hit = predicted[np.arange(len(labels)), labels]
        squares: Array = np.square(predicted).sum(axis=1) - 2 * hit + 1
        return squares

    return "Brier score over all classes", of_classes


def constant_loss(problem: Problem, labels: Array, weights: Array | None, classes: int | None) -> float:
    """Returns the mean loss of the best constant prediction: the label's mean, or the classes' shares."""
    targets: Any = np.eye(classes)[labels] if problem == MULTICLASS and classes else labels.astype(float)[:, None]
    means = np.average(targets, axis=0, weights=weights)
    return float(np.average(np.square(targets - means).sum(axis=1), weights=weights))


def carrying(importance: Mapping[str, Importance], loss: float, constant: float) -> tuple[str, float] | None:
    """Returns the feature that carries a model, and its share of all importance; None if there is none.

    One does if it has nearly all importance, and the model is much better than a constant prediction.
    """
    rises = {name: max(0.0, rise[0]) for name, (rise, is_beyond_chance) in importance.items() if is_beyond_chance}
    total = sum(rises.values())
    if len(importance) < 2 or total == 0 or loss > constant / 2:
        return None
    name = max(rises, key=lambda each: rises[each])
    share = rises[name] / total
    return (name, share) if share >= CARRIES else None
