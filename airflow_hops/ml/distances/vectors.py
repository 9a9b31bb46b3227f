"""Distance of two samples of vectors: the maximum mean discrepancy.

Gretton, Borgwardt, Rasch, Schölkopf and Smola, "A kernel two-sample test" (2012): the distance of the means of both
samples in the space of a Gaussian kernel, 0 only if the distributions are equal. It also detects changes that no single
number of the vectors shows, such as new correlations.
"""

from __future__ import annotations

import numpy as np

from airflow_hops.ml.distances.sides import Array, Vectors

MEASURE = "maximum_mean_discrepancy"


def kernel_of(reference: Vectors, current: Vectors) -> Array:
    """Computes the kernel of all pairs of vectors, ``[rows, rows]``, reference rows first; 0 on the diagonal.

    Each dimension is divided by its standard deviation over both samples, so that units do not matter; the kernel is as
    wide as the median distance between two vectors.
    """
    pooled = np.concatenate([reference.values, current.values]).astype(np.float64)
    deviations = pooled.std(axis=0)
    scaled = (pooled - pooled.mean(axis=0)) / np.where(deviations > 0, deviations, 1.0)
    squares = (scaled**2).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares[None] - 2 * scaled @ scaled.T, 0.0)
    apart = distances[np.triu_indices(len(pooled), 1)]
    width = float(np.median(apart)) or float(apart.mean()) or 1.0
    kernel: Array = np.exp(-distances / (2 * width))
    np.fill_diagonal(kernel, 0.0)
    return kernel


def discrepancies(kernel: Array, m: int, draws: int = 1, random: np.random.Generator | None = None) -> Array:
    """Returns the discrepancy of the first ``m`` vectors from the others, below 0 if nearer than most samples are.

    With ``random``, those of random divisions of all vectors into samples of the same sizes; ``[draws]``.
    """
    n = len(kernel) - m
    is_reference = np.zeros((len(kernel), draws))
    is_reference[:m] = 1.0
    if random is not None:
        is_reference = random.permuted(is_reference, axis=0)
    if min(m, n) < 2:
        return np.zeros(draws)
    # The signed square root of the unbiased estimate
    within = (is_reference * (kernel @ is_reference)).sum(axis=0)
    of_reference = kernel.sum(axis=1) @ is_reference
    others = kernel.sum() - 2 * of_reference + within
    squared = within / (m * (m - 1)) + others / (n * (n - 1)) - 2 * (of_reference - within) / (m * n)
    result: Array = np.sign(squared) * np.sqrt(np.abs(squared))
    return result
