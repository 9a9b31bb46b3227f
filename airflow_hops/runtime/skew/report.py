"""What comes of a comparison of two distributions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["stable", "drift", "pipeline_fault", "insufficient"]


@dataclass(frozen=True)
class FeatureSkew:
    """How far a feature has moved.

    Attributes:
        measure: "l_infinity" (strings: greatest difference of a value's share) or "jensen_shannon" (numbers:
            divergence of the histograms), both as TFDV defines them, 0 to 1, of the values that are there.
        score: The measure's value; None where one side has no value.
        threshold: The schema's.
        drifted: Whether the score is above the threshold.
        missing_reference: Share of the reference's rows in which the feature is missing.
        missing_current: The same of the current rows.
        histogram_reference: Buckets of the reference: ``[low, high, count]`` or ``[value, count]``.
        histogram_current: Buckets of the current rows.
    """

    measure: str
    score: float | None
    threshold: float
    drifted: bool
    missing_reference: float
    missing_current: float
    histogram_reference: list[list[Any]] = field(default_factory=list)
    histogram_current: list[list[Any]] = field(default_factory=list)

    @property
    def excess(self) -> float:
        """The score by the threshold."""
        return (self.score or 0.0) / self.threshold if self.threshold else float("inf")


@dataclass(frozen=True)
class SkewReport:
    """What came of a comparison.

    Attributes:
        verdict: "insufficient" when there are too few rows to say; "pipeline_fault" when a feature has lost all its
            values, which is no change of the world and nothing to learn from; "drift" when a feature has drifted;
            "stable" otherwise.
        drifted: Names of the drifted features, the most moved first (score by threshold).
        lost: Names of the features that have values in the reference, and none now.
        features: Every compared feature by name.
        rows_reference: Rows of the reference.
        rows_current: Rows that were compared with it.
        min_rows: Rows that it takes for a verdict.
    """

    verdict: Verdict
    drifted: tuple[str, ...]
    features: Mapping[str, FeatureSkew]
    rows_reference: int
    rows_current: int
    min_rows: int
    lost: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON value."""
        return asdict(self)
