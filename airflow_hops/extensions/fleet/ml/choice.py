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
from airflow_hops.ml.metrics.metrics import Sample, copies_of


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


def gain(pooled: np.ndarray, own: np.ndarray, sample: Sample) -> tuple[float, float]:
    """Returns the weighted mean of the paired differences of losses, above 0 if ``own`` is better, and its error.

    >>> gain(np.array([1.0, 2.0, 3.0, 2.0]), np.array([0.0, 1.0, 2.0, 1.0]), Sample())
    (1.0, 0.0)
    """
    differences, rows = pooled - own, sample.effective_rows(np.ones(len(own)))
    mean = float(np.average(differences, weights=sample.weights))
    spread = float(np.average(np.square(differences - mean), weights=sample.weights))
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
        min_rows: Training rows below which the pooled model stays; copies, and rows of unequal weight, count as fewer.
        standard_errors: As above.
    """
    folds = {fold: (rows.where(rows.folds != fold), rows.where(rows.folds == fold)) for fold in learner.folds}
    weights = np.concatenate([held.weights for _, held in folds.values()])
    inputs = np.unique(rows.matrix, axis=0, return_inverse=True)[1].reshape(-1)
    sample = Sample(rows.weights, copies=copies_of(rows.hashes, inputs))
    held_out = sample.where(np.concatenate([np.flatnonzero(rows.folds == fold) for fold in learner.folds]))
    if not len(weights):
        return Choice(None, "no training rows are held out", math.nan, math.nan)

    def losses(models: Mapping[int, Any]) -> np.ndarray:
        return np.concatenate([learner.losses(models[fold], held) for fold, (_, held) in folds.items()])

    pooled = losses(pooled_by_fold)
    pooled_loss = float(weights @ pooled / weights.sum())
    reason = ""
    if (enough := sample.effective_rows(np.ones(len(rows)))) < min_rows:
        alike = "" if round(enough) == len(rows) else f" (as {enough:.3g} different ones of equal weight)"
        reason = f"{len(rows)} training rows{alike}, fewer than {min_rows}"
    elif missing := learner.missing_classes(rows):
        reason = f"no row is of class {', '.join(map(str, missing))}"
    elif any(not len(others) or learner.missing_classes(others) for others, _ in folds.values()):
        reason = "no other model"  # equal rows are in the same fold
    if reason:
        return Choice(None, reason, pooled_loss, pooled_loss)
    nearest = best = Choice(None, "no other model", pooled_loss, pooled_loss)
    least = math.inf
    for strategy in learner.strategies:
        models = {fold: learner.fit(others, strategy, pooled_by_fold[fold]) for fold, (others, _) in folds.items()}
        if any(model is None for model in models.values()):
            continue
        better, error = gain(pooled, losses(models), held_out)
        words = (
            f"{strategy} is {better:+.3g} ± {error:.2g} better than the pooled model on {len(weights)} held-out rows"
        )
        loss = pooled_loss - better
        if loss < least:
            least, nearest = loss, Choice(None, words, pooled_loss, pooled_loss)
        if math.isfinite(loss) and better > standard_errors * error and (best.strategy is None or loss < best.loss):
            best = Choice(strategy, words, loss, pooled_loss)
    return nearest if best.strategy is None else best
