"""Compares two answers to one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.protocol import Method


@dataclass
class OutputDifference:
    """Difference of one output between two answers, or its sum over many pairs of answers.

    Attributes:
        rows: Rows of the returned answer.
        rows_differing: Rows that differ by more than the tolerance.
        max_difference: Largest absolute difference; None if there is none: strings, different shapes, a missing output,
            NaN compared with a number.
        sum_difference: Sum of the largest absolute difference of each row that has one.
        rows_measured: Number of rows in that sum.
    """

    rows: int
    rows_differing: int
    max_difference: float | None = None
    sum_difference: float = 0.0
    rows_measured: int = 0

    def add(self, difference: OutputDifference) -> None:
        """Adds the difference of one pair or of several."""
        self.rows += difference.rows
        self.rows_differing += difference.rows_differing
        self.sum_difference += difference.sum_difference
        self.rows_measured += difference.rows_measured
        known = [most for most in (self.max_difference, difference.max_difference) if most is not None]
        self.max_difference = max(known, default=None)

    def report(self) -> dict[str, Any]:
        """Returns the counts, the share of rows that differ, and the largest and the mean difference."""
        return {
            "rows": self.rows,
            "rows_differing": self.rows_differing,
            "share_differing": self.rows_differing / self.rows if self.rows else None,
            "max_difference": self.max_difference,
            "mean_difference": self.sum_difference / self.rows_measured if self.rows_measured else None,
        }


def compare(method: Method, returned: bytes, shadow: bytes, tolerance: float) -> dict[str, OutputDifference]:
    """Compares two serialized answers output by output.

    Args:
        method: Method of the request.
        returned: The answer that was returned.
        shadow: The answer to compare with it.
        tolerance: Absolute and relative tolerance, as in ``numpy.isclose``; NaN equals NaN.

    Returns:
        Alias to difference. The aliases of Classify and Regress are ``scores``, ``labels`` and ``value``; those of
        MultiInference are prefixed with ``signature_name.``.
    """
    expected, result = outputs_of(method, returned), outputs_of(method, shadow)
    return {name: _difference(array, result.get(name), tolerance) for name, array in expected.items()} | {
        name: OutputDifference(_rows(array), _rows(array)) for name, array in result.items() if name not in expected
    }


def outputs_of(method: Method, message: bytes) -> dict[str, np.ndarray]:
    """Returns an answer as arrays by name, whose first dimension is the rows."""
    if method is Method.PREDICT:
        outputs = protocol.PredictResponse.FromString(message).outputs
        return {alias: tensors.from_proto(outputs[alias]) for alias in outputs}
    if method is Method.CLASSIFY:
        return _classifications(protocol.ClassificationResponse.FromString(message).result)
    if method is Method.REGRESS:
        return _regressions(protocol.RegressionResponse.FromString(message).result)
    named: dict[str, np.ndarray] = {}
    for result in protocol.MultiInferenceResponse.FromString(message).results:
        kind = result.WhichOneof("result")
        arrays = (
            _classifications(result.classification_result)
            if kind == "classification_result"
            else _regressions(result.regression_result)
        )
        named |= {f"{result.model_spec.signature_name}.{name}": array for name, array in arrays.items()}
    return named


def _classifications(result: Any) -> dict[str, np.ndarray]:
    rows = [row.classes for row in result.classifications]
    widest = max((len(classes) for classes in rows), default=0)
    scores: np.ndarray = np.full((len(rows), widest), np.nan)
    labels: np.ndarray = np.full((len(rows), widest), b"", object)
    for row, classes in enumerate(rows):
        scores[row, : len(classes)] = [one.score for one in classes]
        labels[row, : len(classes)] = [one.label.encode() for one in classes]
    return {"scores": scores, "labels": labels}


def _regressions(result: Any) -> dict[str, np.ndarray]:
    return {"value": np.array([regression.value for regression in result.regressions])}


def _difference(returned: np.ndarray, shadow: np.ndarray | None, tolerance: float) -> OutputDifference:
    rows = _rows(returned)
    numbers = returned.dtype.kind in "fiubc"
    if not rows and shadow is not None and shadow.shape == returned.shape:
        return OutputDifference(0, 0)
    if shadow is None or shadow.shape != returned.shape or (shadow.dtype.kind in "fiubc") != numbers:
        return OutputDifference(rows, rows)
    if not numbers:
        return OutputDifference(rows, int(np.any((returned != shadow).reshape(rows, -1), axis=1).sum()))
    left, right = _wide(returned), _wide(shadow)
    close = np.isclose(right, left, rtol=tolerance, atol=tolerance, equal_nan=True).reshape(rows, -1)
    with np.errstate(invalid="ignore"):
        apart = np.where(left == right, 0.0, np.abs(left - right)).reshape(rows, -1)
    apart[np.isnan(left).reshape(rows, -1) & np.isnan(right).reshape(rows, -1)] = 0.0
    largest = apart.max(axis=1, initial=0.0)
    measured = largest[np.isfinite(largest)]
    return OutputDifference(
        rows=rows,
        rows_differing=int((~close.all(axis=1)).sum()),
        max_difference=float(measured.max()) if len(measured) else None,
        sum_difference=float(measured.sum()),
        rows_measured=len(measured),
    )


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _rows(array: np.ndarray) -> int:
    return len(array) if array.ndim else 1
