"""What a comparison of served rows, or of two spans, comes to: the verdict, its causes, the artifact's properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from airflow_hops.contract.json_fields import JsonFields, where_told
from airflow_hops.contract.properties import Properties, Window

SkewVerdict = Literal["stable", "drift", "pipeline_fault", "insufficient"]
STABLE: SkewVerdict = "stable"
DRIFT: SkewVerdict = "drift"
PIPELINE_FAULT: SkewVerdict = "pipeline_fault"
INSUFFICIENT: SkewVerdict = "insufficient"

Cause = Literal["all_missing", "missing_rate", "constant", "unit_change", "new_category", "covariate_shift"]


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
        effects: How much the drift of each moves a prediction.
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
