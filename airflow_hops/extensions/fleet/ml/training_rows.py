"""Rows of a segment as its models take them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_hops.extensions.fleet.core.linear import Encoding
from airflow_hops.extensions.fleet.ml.columns import Columns, float64_values, served_floats
from airflow_hops.extensions.fleet.ml.rows import HASH


@dataclass(frozen=True)
class TrainingRows:
    """Rows as a model takes them.

    Attributes:
        matrix: Encoded features, float64 ``[rows, width]``.
        labels: Class numbers or values, float64 ``[rows]``.
        weights: Weights, float64 ``[rows]``.
        folds: Number of the fifth of the rows that each is in, by its hash, ``[rows]``.
    """

    matrix: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    folds: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, chosen: np.ndarray) -> TrainingRows:
        """Returns some of the rows, by a mask or their numbers."""
        return TrainingRows(self.matrix[chosen], self.labels[chosen], self.weights[chosen], self.folds[chosen])


FOLDS = 5


def training_rows(table: pa.Table, columns: Columns, encoding: Encoding) -> TrainingRows:
    """Encodes rows, whose labels and weights are numbers."""
    weights = np.ones(len(table)) if columns.weight is None else float64_values(table[columns.weight])
    features = {
        name: table[name].combine_chunks() if columns.types[name] == "string" else served_floats(table[name])
        for name in columns.features
    }
    folds = (table[HASH].to_numpy() % FOLDS).astype(int)
    return TrainingRows(encoding.encode(features), float64_values(table[columns.label]), weights, folds)
