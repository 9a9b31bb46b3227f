"""Comparison of served rows, or of two spans: options, and the artifact's properties with verdict and causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from airflow_hops.core.artifacts.properties import Properties, Window
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.json_fields import JsonFields, StepOptions, omit_if_none

SkewVerdict = Literal["stable", "drift", "pipeline_fault", "insufficient"]
STABLE: SkewVerdict = "stable"
DRIFT: SkewVerdict = "drift"
PIPELINE_FAULT: SkewVerdict = "pipeline_fault"
INSUFFICIENT: SkewVerdict = "insufficient"

Cause = Literal[
    "all_missing", "missing_rate", "other_type", "constant", "unit_change", "swapped", "new_category", "covariate_shift"
]

REPORT_FILE = "report.json"
HISTOGRAMS_FILE = "histograms.jsonl"  # a line for each feature of the report, in its order


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


@dataclass(frozen=True)
class SkewOptions(SkewTest):
    """Options of the skew stage, as the arguments of ``SkewOperator``; durations in seconds.

    A verdict requires 1,000 rows unless ``min_rows`` is set.
    """

    model_name: str | None = None
    split: str = "train"
    time_feature: str | None = None
    attribute: bool = True
    predictions: bool = True
    own_windows: bool = False
    identifiers: Sequence[str] = ()
    float_rounding: int | None = None
    silent_after_s: float | None = None
    down_after_s: float | None = None

    MIN_ROWS: ClassVar[int] = 1000
    """A verdict consumes the rows; with fewer, each would detect less."""


@dataclass(frozen=True)
class SkewReference(JsonFields):
    """The reference of a comparison.

    Attributes:
        statistics: URI of the statistics.
        schema: URI of the schema, or None.
        model: For captured rows: the model.
        version: For captured rows: the version that was trained on the statistics.
    """

    statistics: str = ""
    fingerprint: str = ""
    schema: str | None = None
    model: str | None = omit_if_none()
    version: int | None = omit_if_none()


@dataclass(frozen=True)
class SkewProperties(Properties):
    """Properties of a ``skew`` artifact.

    Attributes:
        verdict: ``insufficient`` if there are too few rows; ``pipeline_fault`` if a drifted feature indicates a broken
            pipeline; ``drift``; or ``stable``. Empty if the artifact has none.
        drifted: Names of the drifted features, largest drift first.
        lost: Names of features that no longer have values.
        causes: Probable causes of drift by feature.
        effects: Mean changes of a prediction by drifted feature; in a regression, in the label's unit.
        problem: Kind of problem, if there are effects; None for two classes in artifacts of older versions.
        prediction: Distance of the predictions from those for the training data, and its threshold, if known.
        skewed: Features that differ row by row.
        scores: Score and threshold by feature; each may be None.
        window_end: End of the compared span, ISO 8601 UTC.
        window_start: For captured rows: start of their period, by their own time.
        unwell: For captured rows: problems of the monitor itself, such as the server's clock, in words.
        captured_from: For captured rows: time of the first request.
        captured_until: For captured rows: time of the last request.
        captured_files: For captured rows: names of the first and the last of their files.
        versions: For captured rows: number of rows by version.
        current: For two spans: URI of the later statistics.
        split: For two spans: the split.
        windows: For two spans: both windows by role.
    """

    verdict: SkewVerdict | Literal[""] = ""
    drifted: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    causes: Mapping[str, Cause] = field(default_factory=dict)
    effects: Mapping[str, float] = field(default_factory=dict)
    problem: str | None = omit_if_none()
    prediction: tuple[float, float] | None = omit_if_none()
    skewed: tuple[str, ...] = ()
    reference: SkewReference = field(default_factory=SkewReference)
    min_rows: int | None = None
    scores: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    window_end: str | None = None
    window_start: str | None = omit_if_none()
    unwell: tuple[str, ...] = ()
    captured_from: str | None = omit_if_none()
    captured_until: str | None = omit_if_none()
    captured_files: tuple[str, str] | None = omit_if_none()
    versions: Mapping[str, int] | None = omit_if_none()
    current: str | None = omit_if_none()
    split: str | None = omit_if_none()
    windows: Mapping[str, Window | None] | None = omit_if_none()

    @property
    def why_not_learnt(self) -> str | None:
        """Returns why it is not a reason to retrain, in one word; None for drift."""
        return None if self.verdict == DRIFT else PIPELINE_FAULT if self.verdict == PIPELINE_FAULT else "verdict"


@dataclass(frozen=True)
class NameRange(JsonFields):
    """Names of captured files after ``after``, up to ``until``; None before the first file."""

    after: str | None
    until: str | None


@dataclass(frozen=True)
class ComparedFiles(JsonFields):
    """Captured files that a task has compared: its ``captured.json`` in the store.

    Attributes:
        until: Name up to which they were compared.
        runs: Files of each run.
        models: Models that the task compares, whose files a garbage collection keeps.
    """

    until: str | None
    runs: Mapping[str, NameRange]
    models: tuple[str, ...]
