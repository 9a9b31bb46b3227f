"""Batches that ranks of different speeds have written down, and the same training of one process, in NumPy.

A line of a rank's file is a JSON list: the step, its rows, their classes, and whatever else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

Batches = list[list[Any]]
"""Batches by step and rank: rows, classes, and whatever else."""


def read_batches(notes: Path, *, steps: int, rows: int) -> Batches:
    """Reads all epochs; of a step that was done again, the last.

    Each row must be seen once in an epoch of so many steps, and equally many rows in each step.
    """
    by_step: dict[int, dict[str, Any]] = {}
    for file in sorted(notes.glob("rank-*")):
        for line in file.read_text().splitlines():
            step, *batch = json.loads(line)
            by_step.setdefault(step, {})[file.name] = batch
    batches = [list(by_step[step].values()) for step in range(len(by_step))]
    for first in range(0, len(batches), steps):
        seen = [tuple(row) for ranks in batches[first : first + steps] for rank in ranks for row in rank[0]]
        assert len(seen) == len(set(seen)) == rows, "each row is seen once in an epoch"
    sizes = [sum(len(rank[0]) for rank in ranks) for ranks in batches]
    assert max(abs(size - rows / steps) for size in sizes) <= 3
    return batches


def descend(batches: Batches, rate: float, weighted: int) -> tuple[Any, list[float]]:
    """Trains a logistic regression in NumPy on all ranks' rows; returns its weights, and the loss of each step's rows.

    Up to the step ``weighted``, a gradient is the mean over all rows of a step; after it, that of the ranks' means.
    """
    weights, losses = np.zeros(3), []
    for step, ranks in enumerate(batches):
        gradients, sizes, loss = [], [], 0.0
        for rows, classes, *_ in ranks:
            features, labels = np.c_[np.array(rows), np.ones(len(rows))], np.ravel(classes)
            predicted = 1 / (1 + np.exp(-features @ weights))
            loss -= np.log(np.where(labels == 1, predicted, 1 - predicted)).sum()
            gradients.append(features.T @ (predicted - labels) / len(rows))
            sizes.append(len(rows))
        weights = weights - rate * np.average(gradients, axis=0, weights=sizes if step < weighted else None)
        losses.append(loss)
    return weights, losses
