"""Checks a model's predictions, in the same way for every framework and stage."""

from __future__ import annotations

import numpy as np

from airflow_hops.core.artifacts.target import MULTICLASS, REGRESSION, Problem
from airflow_hops.core.errors import BadInput

_ROUNDING = 1e-6
"""Tolerance for float32 probabilities around 0 and 1."""
_OFF_ONE = 5e-3
"""Tolerance for the sum of all probabilities around 1; a softmax in bfloat16 misses it by 0.002."""


def check_predictions(values: np.ndarray, problem: Problem, what: str) -> None:
    """Raises ``BadInput`` for numbers that cannot be predictions.

    Args:
        values: ``[rows]``, or, for several classes, ``[rows, classes]``.
        problem: The kind of problem.
        what: Name of the predictions, for messages.

    Raises:
        BadInput: a number is not finite, a probability is not in [0, 1], or those of a row do not add up to 1.
    """
    if not (rows := len(values)):
        return
    by_row = values.reshape(rows, -1).astype(np.float64)
    if bad := int((~np.isfinite(by_row).all(axis=1)).sum()):
        raise BadInput(f"{what} is NaN or infinite in {bad} of {rows} rows")
    if problem == REGRESSION:
        return
    if outside := int(((by_row < -_ROUNDING) | (by_row > 1 + _ROUNDING)).any(axis=1).sum()):
        raise BadInput(
            f"{what} is {by_row.min():.4g} to {by_row.max():.4g}, outside [0, 1] in {outside} of {rows} rows, which "
            "are not probabilities; end a network with Sigmoid or Softmax (a loss from logits needs them when it "
            "serves, too), and boosted trees with an objective that gives probabilities"
        )
    if problem == MULTICLASS and len(off := (sums := by_row.sum(axis=1))[np.abs(sums - 1) > _OFF_ONE]):
        raise BadInput(
            f"{what} of all classes do not add up to 1 in {len(off)} of {rows} rows, the first to {off[0]:.6g}; end a "
            "network with Softmax, and train boosted trees on all classes together (multiclass, multi:softprob)"
        )
