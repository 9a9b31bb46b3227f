"""Partial dependence (Friedman, "Greedy function approximation", 2001): the mean prediction if all rows had a value."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from airflow_hops.extensions.explain.core.explanation import Dependence, DependencePoint
from airflow_hops.extensions.explain.ml.shapley import Array, Predict

POINTS = 20
"""Maximum number of a feature's values."""


def partial_dependence(
    feature: str, values: Array, models: Mapping[str, tuple[Predict, Mapping[str, Array]]]
) -> Dependence:
    """Computes the partial dependence of models on a feature.

    Args:
        feature: A feature of one value a row.
        values: Its values in all rows, ``[rows]``, for the density.
        models: Models, ``candidate`` and perhaps ``champion``, which predict ``[rows, outputs]``, each with the raw
            features of the rows over which predictions are averaged.
    """
    points, shares = grid(values)
    means: dict[str, list[tuple[float, ...]]] = {}
    for name, (predict, arrays) in models.items():
        dtype = arrays[feature].dtype
        rows = len(arrays[feature])
        means[name] = [
            tuple(predict({**arrays, feature: np.full(rows, value, dtype)}).mean(axis=0).tolist()) for value in points
        ]
    champion = means.get("champion")
    described = tuple(
        DependencePoint(_as_json(value), share, means["candidate"][index], champion[index] if champion else None)
        for index, (value, share) in enumerate(zip(points, shares, strict=True))
    )
    return Dependence(feature, values.dtype != object, described)


def grid(values: Array) -> tuple[list[object], list[float]]:
    """Returns values of a feature to predict with, and the share of the rows at or nearest to each.

    Of numbers, all different ones if they are few, else quantiles; of texts, the most frequent; a missing number last.
    """
    if values.dtype == object:
        kinds, counts = np.unique(values, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:POINTS]
        return list(kinds[order]), (counts[order] / len(values)).tolist()
    finite = values[np.isfinite(values)]
    different: Array = np.unique(finite)
    if len(different) > POINTS:
        quantiles = np.quantile(finite, np.linspace(0.01, 0.99, POINTS), method="nearest")
        different = np.unique(quantiles)
    middles = (different[1:].astype(float) + different[:-1]) / 2
    counts = np.bincount(np.searchsorted(middles, finite), minlength=len(different))
    result, shares = different.tolist(), (counts / len(values)).tolist()
    missing = np.isnan(values).mean() if values.dtype.kind == "f" else 0.0
    return ([*result, np.nan], [*shares, float(missing)]) if missing else (result, shares)


def _as_json(value: object) -> float | str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace") or None
    assert isinstance(value, int | float)
    return None if value != value else value
