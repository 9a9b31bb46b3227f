"""Comparison of two samples of rows: options, verdicts and causes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.json_fields import StepOptions

SkewVerdict = Literal["stable", "drift", "pipeline_fault", "insufficient"]
STABLE: SkewVerdict = "stable"
DRIFT: SkewVerdict = "drift"
PIPELINE_FAULT: SkewVerdict = "pipeline_fault"
INSUFFICIENT: SkewVerdict = "insufficient"

Cause = Literal[
    "all_missing", "missing_rate", "other_type", "constant", "unit_change", "swapped", "new_category", "covariate_shift"
]


@dataclass(frozen=True)
class SkewTest(StepOptions):
    """Options of the comparison of two distributions, feature by feature.

    Attributes:
        alpha: Maximum share of false discoveries among the drifted features (Benjamini and Hochberg); None for
            thresholds only, as in TFDV.
        min_rows: Number of rows below which the verdict is "insufficient"; None for 100, or, without ``alpha``, 5,000.
        threshold: Distance above which a feature has drifted, where the schema has no other: the least share of the
            rows that would have to change, 0 to 1. With 0, every significant change is drift.
        thresholds: Distances of single features, instead of the schema's.
        comparator: The schema's comparators to use: ``skew_comparator`` or ``drift_comparator``.
        missing_threshold: Tolerated change of the share of missing values, 0 to 1.
        seed: Seed of the permutations.

    Raises:
        BadInput: an option is out of range.
    """

    alpha: float | None = 0.01
    min_rows: int | None = None
    threshold: float = 0.05
    thresholds: Mapping[str, float] | None = None
    comparator: Literal["skew", "drift"] = "skew"
    missing_threshold: float = 0.05
    seed: int = 0

    MIN_ROWS: ClassVar[int] = 100
    """P-values are valid for any size, but fewer rows detect little."""
    MIN_ROWS_OF_THRESHOLDS: ClassVar[int] = 5000
    """Without tests, smaller windows exceed a threshold of 0.05 by chance."""

    def __post_init__(self) -> None:
        if self.alpha is not None and not 0 < self.alpha < 1:
            raise InvalidArgument("alpha", self.alpha, ", expected above 0 and below 1, or None")
        if self.rows_needed < 1:
            raise InvalidArgument("min_rows", self.min_rows, ", expected at least 1")
        named = {f"thresholds[{name!r}]": value for name, value in (self.thresholds or {}).items()}
        for name, value in (named | {n: getattr(self, n) for n in ("threshold", "missing_threshold")}).items():
            if not 0 <= value <= 1:
                raise BadInput(f"{name} is {value}, expected 0 to 1")
        if self.comparator not in ("skew", "drift"):
            raise InvalidArgument("comparator", self.comparator, ", expected 'skew' or 'drift'")

    @property
    def rows_needed(self) -> int:
        """Returns the number of rows that a verdict requires."""
        if self.min_rows is not None:
            return self.min_rows
        return self.MIN_ROWS_OF_THRESHOLDS if self.alpha is None else self.MIN_ROWS
