"""Chooses which model answers a segment: its own, one that continued from the pooled model, or the pooled model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_hops.extensions.fleet.core.packs import POOLED
from airflow_hops.extensions.fleet.ml.columns import TrainingRows
from airflow_hops.extensions.fleet.ml.learners import Learner, Strategy


@dataclass(frozen=True)
class Choice:
    """The chosen strategy, None for the pooled model; and mean losses on held-out rows, its and the pooled model's."""

    strategy: Strategy | None
    reason: str
    loss: float
    pooled_loss: float

    @property
    def state(self) -> str:
        """Returns the state of the segment in the index."""
        return POOLED if self.strategy is None else self.strategy.state


def gain(pooled: np.ndarray, own: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Returns the weighted mean of the paired differences of losses, above 0 if ``own`` is better, and its error.

    >>> gain(np.array([1.0, 2.0, 3.0, 2.0]), np.array([0.0, 1.0, 2.0, 1.0]), np.ones(4))
    (1.0, 0.0)
    """
    differences, total = pooled - own, weights.sum()
    mean = float(weights @ differences / total)
    rows = total**2 / np.square(weights).sum()  # Kish's effective number
    spread = float(weights @ np.square(differences - mean) / total)
    return mean, math.sqrt(spread / (rows - 1)) if rows > 1 else math.inf


def choose(
    learner: Learner, rows: TrainingRows, pooled_by_fold: Mapping[int, Any], min_rows: int, standard_errors: float
) -> Choice:
    """Chooses on held-out rows, the same for all models.

    The pooled model stays unless another is better by more than ``standard_errors`` of the mean paired difference of
    their losses: of few rows, a difference must be large. Of those that pass, the one with the least loss is chosen.

    Args:
        learner: Trains the models.
        rows: Training rows of the segment.
        pooled_by_fold: A pooled model for each of the learner's folds, which has not learnt from it.
        min_rows: Training rows below which the pooled model stays.
        standard_errors: As above.
    """
    held = np.concatenate([np.flatnonzero(rows.folds == fold) for fold in learner.folds])
    if not len(held):
        return Choice(None, "no training rows are held out", math.nan, math.nan)
    weights = rows.weights[held]

    def losses(model_of: Any) -> np.ndarray | None:
        parts = []
        for fold in learner.folds:
            if (model := model_of(fold)) is None:
                return None
            parts.append(learner.losses(model, rows.where(rows.folds == fold)))
        return np.concatenate(parts)

    pooled = losses(pooled_by_fold.__getitem__)
    assert pooled is not None
    pooled_loss = float(weights @ pooled / weights.sum())
    if len(rows) < min_rows:
        return Choice(None, f"{len(rows)} training rows, fewer than {min_rows}", pooled_loss, pooled_loss)
    if missing := learner.missing_classes(rows):
        words = f"no row is of class {', '.join(map(str, missing))}"
        return Choice(None, words, pooled_loss, pooled_loss)
    best: Choice | None = None
    nearest = "no other model"
    least = math.inf
    for strategy in learner.strategies:

        def model_of(fold: int, strategy: Strategy = strategy) -> Any:
            others = rows.where(rows.folds != fold)
            if not len(others) or learner.missing_classes(others):  # equal rows are in the same fold
                return None
            return learner.fit(others, strategy, pooled_by_fold[fold])

        if (own := losses(model_of)) is None:
            continue
        better, error = gain(pooled, own, weights)
        loss = pooled_loss - better
        words = f"{strategy} is {better:+.3g} ± {error:.2g} better than the pooled model on {len(held)} held-out rows"
        if loss < least:
            least, nearest = loss, words
        if math.isfinite(loss) and better > standard_errors * error and (best is None or loss < best.loss):
            best = Choice(strategy, words, loss, pooled_loss)
    return best or Choice(None, nearest, pooled_loss, pooled_loss)
