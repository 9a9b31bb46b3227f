"""Result of comparing two distributions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from airflow_hops.core.json_fields import finite
from airflow_hops.core.skew import DRIFT, INSUFFICIENT, PIPELINE_FAULT, STABLE, Cause, SkewVerdict
from airflow_hops.ml.distances.causes import FAULTS, MISSING_FAULT


@dataclass(frozen=True)
class FeatureSkew:
    """Drift of a feature.

    Attributes:
        measure: "distance" (:mod:`~airflow_hops.ml.distances.measures`), or TFDV's measure if the schema has a
            threshold for one.
        score: The measure's value, without missing values; None if one side has no values.
        threshold: The score above which the feature has drifted: the schema's, or if higher, the one that unchanged
            samples of these sizes rarely exceed.
        drifted: Whether the values have drifted, or the share of missing or infinite ones, or the lengths of lists.
        missing_reference: Share of the reference's rows in which the feature is missing; NaN and empty lists count.
        missing_current: The same for the current rows.
        p_value: Probability that unchanged samples of these sizes are as far apart, corrected for the number of tests;
            None without rows of both sides, or without ``alpha``.
        missing_p_value: The same for the share of missing values.
        cause: Probable cause of the drift; None without drift.
        detail: Evidence for the cause, in words: the new values, the conversion of units.
        summary: The change in words; None without rows of both sides.
        scores: Other measures of the feature by name.
        effect: How much the drift moves a prediction on average, regardless of the direction; None if unknown.
        effect_signed: How much it moves the mean prediction; None if unknown, or with several classes.
        common_histogram: Both sides on the same buckets, as shares: ``[low, high, reference, current]`` or ``[value,
            reference, current]``.

    Example:
        >>> from airflow_hops import FeatureSkew
        >>> FeatureSkew("distance", 0.3, 0.05, drifted=True, missing_reference=0.0, missing_current=0.0).drifted
        True
    """

    measure: str
    score: float | None
    threshold: float | None
    drifted: bool
    missing_reference: float
    missing_current: float
    p_value: float | None = None
    missing_p_value: float | None = None
    cause: Cause | None = None
    detail: str | None = None
    summary: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    effect: float | None = None
    effect_signed: float | None = None
    common_histogram: list[list[Any]] = field(default_factory=list)

    @property
    def fault(self) -> bool:
        """Whether the drift looks like a broken pipeline."""
        rise = self.missing_current - self.missing_reference
        return self.drifted and (self.cause in FAULTS or rise >= MISSING_FAULT)

    @property
    def excess(self) -> float:
        """Score divided by the threshold."""
        if self.score is None or self.threshold is None:
            return 0.0
        return self.score / self.threshold if self.threshold else math.inf if self.score else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON value."""
        return dict(finite(asdict(self)))

    @property
    def rank(self) -> tuple[bool, bool, float, float]:
        """Sorts features by how much they matter: drifted ones, faults, and those that move predictions first."""
        return not self.drifted, not self.fault, -(self.effect or 0.0), -self.excess


@dataclass(frozen=True)
class SkewReport:
    """Result of a comparison.

    Attributes:
        verdict: "insufficient" if there are too few rows; "pipeline_fault" if a drifted feature looks like a broken
            pipeline, on which a model should not be trained; "drift" if a feature has drifted; otherwise "stable".
        features: Every compared feature by name: drifted ones first, and of those the likely faults, then by effect on
            predictions, if known, then by score relative to the threshold.
        min_rows: Number of rows that a verdict requires.
        alpha: Share of false discoveries among the drifted features; None if only thresholds decide.
        unmatched: Without a schema, names of features on one side only, which were not compared.
        notes: Features that were not compared as usual, with reasons.

    Example:
        >>> import pyarrow as pa
        >>> from airflow_hops import detect_skew
        >>> report = detect_skew(pa.table({"km": range(1000)}), pa.table({"km": range(5000, 6000)}))
        >>> report.verdict, list(report.features)
        ('drift', ['km'])
    """

    verdict: SkewVerdict
    features: Mapping[str, FeatureSkew]
    rows_reference: int
    rows_current: int
    min_rows: int
    alpha: float | None = None
    unmatched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def drifted(self) -> tuple[str, ...]:
        """Names of the drifted features, in the order of ``features``."""
        return tuple(name for name, skew in self.features.items() if skew.drifted)

    def with_effects(self, effects: Mapping[str, tuple[float, float | None]]) -> SkewReport:
        """Adds the effects on predictions, mean absolute and mean, and sorts the features again."""
        features = {
            name: replace(skew, effect=effects[name][0], effect_signed=effects[name][1]) if name in effects else skew
            for name, skew in self.features.items()
        }
        return replace(self, features=dict(sorted(features.items(), key=lambda item: item[1].rank)))

    @property
    def lost(self) -> tuple[str, ...]:
        """Names of features that have values in the reference, but none now."""
        return tuple(name for name, skew in self.features.items() if skew.cause == "all_missing")

    @property
    def causes(self) -> dict[str, Cause]:
        """Probable causes by feature."""
        return {name: cause for name in self.drifted if (cause := self.features[name].cause)}

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON value; infinities and NaN, which JSON lacks, become None."""
        derived = {"drifted": self.drifted, "lost": self.lost, "causes": self.causes}
        return dict(finite({**asdict(self), **derived}))

    def __str__(self) -> str:
        head = f"{self.verdict}: {self.rows_current:,} rows against {self.rows_reference:,}"
        if self.verdict == INSUFFICIENT:
            head += f", {self.min_rows:,} needed"
        if self.unmatched:
            head += f"; only on one side: {', '.join(self.unmatched)}"
        if not self.features:
            return head
        rows: list[tuple[str, ...]] = [("feature", "measure", "score", "threshold", "p", "missing", "drifted")]
        rows += [(name, *_cells(self.features[name])) for name in self.features]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([head, *lines])


def verdict_of(features: Iterable[FeatureSkew]) -> SkewVerdict:
    """Returns the verdict of a comparison of enough rows."""
    drifted = [skew for skew in features if skew.drifted]
    return STABLE if not drifted else PIPELINE_FAULT if any(skew.fault for skew in drifted) else DRIFT


def _cells(skew: FeatureSkew) -> tuple[str, ...]:
    def number(value: float | None, form: str = ".4f") -> str:
        return "-" if value is None else format(value, form)

    missing = f"{100 * skew.missing_reference:.1f}% -> {100 * skew.missing_current:.1f}%"
    what = f"{skew.cause} ({skew.detail})" if skew.detail else skew.cause or ""
    p = number(skew.p_value, ".2g")
    what = f"{what}: {skew.summary}" if skew.summary else what
    return skew.measure, number(skew.score), number(skew.threshold), p, missing, what if skew.drifted else ""
