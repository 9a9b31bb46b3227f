"""How served rows, or two spans, are compared, and what that comes to: verdict, causes, the artifact's properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.contract.json_fields import JsonFields, StepOptions, where_told
from airflow_hops.contract.properties import Properties, Window

SkewVerdict = Literal["stable", "drift", "pipeline_fault", "insufficient"]
STABLE: SkewVerdict = "stable"
DRIFT: SkewVerdict = "drift"
PIPELINE_FAULT: SkewVerdict = "pipeline_fault"
INSUFFICIENT: SkewVerdict = "insufficient"

Cause = Literal["all_missing", "missing_rate", "constant", "unit_change", "new_category", "covariate_shift"]


@dataclass(frozen=True)
class SkewTest(StepOptions):
    """How two distributions are compared, feature by feature.

    Attributes:
        alpha: Greatest share of false discoveries among the features called drifted (Benjamini and Hochberg); None for
            fixed thresholds alone, as TFDV does it, without a schema those that
            :func:`~airflow_hops.runtime.schema.infer_schema` would set.
        min_rows: Rows in question below which the verdict is "insufficient"; None for 100, and without ``alpha`` for
            5,000.
        measures: By feature, what it is judged by instead: of numbers "jensen_shannon", "jensen_shannon_quantiles",
            "kolmogorov_smirnov", "population_stability_index" or "wasserstein"; of strings "l_infinity",
            "jensen_shannon", "population_stability_index" or "normalized_abs_difference". Vectors have
            "maximum_mean_discrepancy" alone.
        thresholds: By feature, a fixed threshold of its measure; instead of the schema's.
        comparator: Which of the schema's comparators count: ``skew_comparator`` or ``drift_comparator``.
        missing_threshold: Change of a share of missing values up to which it is no drift, 0 to 1.
        seed: Of the simulated samples.

    Raises:
        BadInput: an option is out of range.
    """

    alpha: float | None = 0.01
    min_rows: int | None = None
    measures: Mapping[str, str] | None = None
    thresholds: Mapping[str, float] | None = None
    comparator: Literal["skew", "drift"] = "skew"
    missing_threshold: float = 0.05
    seed: int = 0

    MIN_ROWS: ClassVar[int] = 100
    """P-values hold for any size, but of fewer rows show little."""
    MIN_ROWS_OF_THRESHOLDS: ClassVar[int] = 5000
    """Windows below this size score above the schema's default thresholds by chance. Of 2,000 unchanged flights one
    window in twenty does, of 1,000 one in three, of 5,000 none of 30."""

    def __post_init__(self) -> None:
        if self.alpha is not None and not 0 < self.alpha < 1:
            raise BadInput(f"alpha is {self.alpha}, expected above 0 and below 1, or None")
        if self.rows_needed < 1:
            raise BadInput(f"min_rows is {self.min_rows}, expected at least 1")
        if not 0 <= self.missing_threshold <= 1:
            raise BadInput(f"missing_threshold is {self.missing_threshold}, expected 0 to 1")
        if self.comparator not in ("skew", "drift"):
            raise BadInput(f"comparator is {self.comparator!r}, expected 'skew' or 'drift'")

    @property
    def rows_needed(self) -> int:
        """Rows that a verdict takes."""
        if self.min_rows is not None:
            return self.min_rows
        return self.MIN_ROWS_OF_THRESHOLDS if self.alpha is None else self.MIN_ROWS


@dataclass(frozen=True)
class SkewOptions(SkewTest):
    """The options of the skew stage; JSON values. A verdict takes 1,000 rows unless ``min_rows`` says otherwise.

    Attributes:
        model_name: The served model; None where two spans are compared.
        split: Split of the statistics, and of the examples.
        time_feature: The captured feature that holds the row's own time, seconds since the epoch, or None.
        attribute: Whether effects on predictions are looked for when something has drifted.
        identifiers: Features by which captured rows are joined with examples, to be compared value by value.
        float_rounding: Digits to which floats are rounded in that comparison; None for none.
    """

    model_name: str | None = None
    split: str = "train"
    time_feature: str | None = None
    attribute: bool = True
    identifiers: Sequence[str] = ()
    float_rounding: int | None = None

    MIN_ROWS: ClassVar[int] = 1000
    """A verdict uses them up: fewer would do, and find less."""


@dataclass(frozen=True)
class SkewReference(JsonFields):
    """What was compared with.

    Attributes:
        statistics: URI of the statistics.
        fingerprint: Theirs.
        schema: URI of the schema, or None.
        model: Of captured rows: the model.
        version: Of captured rows: the version that was trained on the statistics.
    """

    statistics: str = ""
    fingerprint: str = ""
    schema: str | None = None
    model: str | None = where_told()
    version: int | None = where_told()


@dataclass(frozen=True)
class SkewProperties(Properties):
    """Of ``skew``.

    Attributes:
        verdict: ``insufficient`` when there are too few rows to say; ``pipeline_fault`` when a drifted feature looks
            like a broken pipeline; ``drift``; or ``stable``. Empty where the artifact tells none.
        drifted: Names of the drifted features, the most moved first.
        lost: Names of those that have no value any more.
        causes: What the drift of each looks like.
        effects: How much the drift of each moves a prediction; of a regression in the label's units.
        problem: What the model predicts, where there are effects; None of two classes in what earlier versions wrote.
        skewed: Features whose single rows differ.
        reference: What was compared with.
        min_rows: Rows that a verdict takes.
        scores: By feature its score and the threshold; None where there is none.
        window_end: The end of the span that was looked at, ISO 8601 UTC.
        captured_from: Of captured rows: the first request.
        captured_until: Of captured rows: the last request.
        versions: Of captured rows: how many each version answered.
        current: Of two spans: URI of the later statistics.
        split: Of two spans: the split.
        windows: Of two spans: both windows by role.
    """

    verdict: SkewVerdict | Literal[""] = ""
    drifted: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    causes: Mapping[str, Cause] = field(default_factory=dict)
    effects: Mapping[str, float] = field(default_factory=dict)
    problem: str | None = where_told()
    skewed: tuple[str, ...] = ()
    reference: SkewReference = field(default_factory=SkewReference)
    min_rows: int | None = None
    scores: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    window_end: str | None = None
    captured_from: str | None = where_told()
    captured_until: str | None = where_told()
    versions: Mapping[str, int] | None = where_told()
    current: str | None = where_told()
    split: str | None = where_told()
    windows: Mapping[str, Window | None] | None = where_told()

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`."""
        return super().from_dict({**value, "reference": SkewReference.from_dict(value.get("reference") or {})})

    @property
    def why_not_learnt(self) -> str | None:
        """Why it is no reason to retrain, in a word; None for a drift."""
        return None if self.verdict == DRIFT else PIPELINE_FAULT if self.verdict == PIPELINE_FAULT else "verdict"
