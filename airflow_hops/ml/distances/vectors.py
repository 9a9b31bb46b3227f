"""Distance of two samples of vectors: the maximum mean discrepancy.

Gretton, Borgwardt, Rasch, Schölkopf and Smola, "A kernel two-sample test" (2012): the distance of the means of both
samples in the space of a Gaussian kernel, 0 only if the distributions are equal. It also detects changes that no single
number of the vectors shows, such as new correlations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airflow_hops.ml.distances.sides import Array, Vectors

MEASURE = "maximum_mean_discrepancy"


@dataclass(frozen=True)
class KernelMatrix:
    """Kernel of all pairs of vectors of two samples, ``[rows, rows]``, reference rows first; 0 on the diagonal."""

    values: Array
    reference_rows: int

    @classmethod
    def of(cls, reference: Vectors, current: Vectors) -> KernelMatrix:
        """Computes the kernel of two samples.

        Each dimension is divided by its standard deviation over both samples, so that units do not matter; the kernel
        is as wide as the median distance between two vectors.
        """
        pooled = np.concatenate([reference.values, current.values]).astype(np.float64)
        deviations = pooled.std(axis=0)
        scaled = (pooled - pooled.mean(axis=0)) / np.where(deviations > 0, deviations, 1.0)
        squares = (scaled**2).sum(axis=1)
        distances = np.maximum(squares[:, None] + squares[None] - 2 * scaled @ scaled.T, 0.0)
        apart = distances[np.triu_indices(len(pooled), 1)]
        width = float(np.median(apart)) or float(apart.mean()) or 1.0
        values = np.exp(-distances / (2 * width))
        np.fill_diagonal(values, 0.0)
        return cls(values, len(reference))

    def score(self) -> float:
        """Returns the discrepancy; below 0 if the samples are nearer than most samples of one population."""
        is_reference = np.arange(len(self.values)) < self.reference_rows
        return float(self._scores(is_reference[:, None].astype(np.float64))[0])

    def permuted(self, draws: int, random: np.random.Generator) -> Array:
        """Returns discrepancies of random divisions of all vectors into samples of the same sizes, ``[draws]``."""
        is_reference = np.zeros((len(self.values), draws))
        is_reference[: self.reference_rows] = 1.0
        return self._scores(random.permuted(is_reference, axis=0))

    def _scores(self, is_reference: Array) -> Array:
        """Returns the signed square root of the unbiased estimate for each column of 0 and 1."""
        m, n = self.reference_rows, len(self.values) - self.reference_rows
        if min(m, n) < 2:
            return np.zeros(is_reference.shape[1])
        within = (is_reference * (self.values @ is_reference)).sum(axis=0)
        of_reference = self.values.sum(axis=1) @ is_reference
        others = self.values.sum() - 2 * of_reference + within
        squared = within / (m * (m - 1)) + others / (n * (n - 1)) - 2 * (of_reference - within) / (m * n)
        result: Array = np.sign(squared) * np.sqrt(np.abs(squared))
        return result
