"""Facts on which the decision to retrain is based."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Self

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import Window
from airflow_hops.core.skew import INSUFFICIENT, PIPELINE_FAULT, SkewProperties
from airflow_hops.core.times import as_utc

Clock = Literal["data", "requests", "clock"]
"""Clock of a decision's time: the compared rows' own time, that of their requests, or else the present."""


@dataclass(frozen=True)
class Situation:
    """The facts at one comparison.

    Attributes:
        at: Time of the decision: the end of the compared data, or the present if the data has no time.
        clock: Clock of ``at``.
        skew: Verdict, drifted features, causes and effects of the comparison.
        report: URI and fingerprint of the comparison.
        rows: Rows that were compared with the reference.
        span: Start and end of the compared rows, ISO 8601 UTC, if known.
        trained_until: End of the champion's training data; None if unknown.
        rollout: The current rollout in words, or None.
        in_flight: The pending retraining in words, or None.
        unsent: Causes of earlier requests without an event, since the task ended between record and event.
        unwell: Problems of the monitor itself, in words.
        no_new_rows: Reason if the sources are known to have only rows of the champion's training; empty otherwise.
        fruitless: By cause of earlier requests, whether their runs found no new rows.
        measured: The newest ``performance`` artifact, or None.
        unmeasured: Reason in words if the performance task made no artifact; empty otherwise.
        costs: Cost of earlier requests so far, by cause: CPU seconds, and seconds times GPUs.
        now: The present, used for requests with another clock.

    Example:
        >>> from datetime import UTC, datetime
        >>> from airflow_hops import Situation
        >>> from airflow_hops.core.skew import SkewProperties, SkewReference
        >>> skew = SkewProperties("stable", reference=SkewReference("f1", "file:///store/statistics"))
        >>> Situation(datetime(2026, 11, 29, tzinfo=UTC), "data", skew, ("file:///store/skew", "f2")).unwell
        ()
    """

    at: datetime
    clock: Clock
    skew: SkewProperties
    report: tuple[str, str]
    rows: int = 0
    span: Window = (None, None)
    trained_until: datetime | None = None
    rollout: str | None = None
    in_flight: str | None = None
    unsent: frozenset[str] = frozenset()
    unwell: tuple[str, ...] = field(default=())
    no_new_rows: str = ""
    fruitless: Mapping[str, bool] = field(default_factory=dict)
    measured: Artifact | None = None
    unmeasured: str = ""
    costs: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @classmethod
    def of(cls, report: Artifact, now: datetime, **known: object) -> Self:
        """Returns the situation at a comparison, a ``skew`` artifact; ``now`` is the time if its data has none."""
        skew = SkewProperties.of(report)
        time, clock = moment_of(skew) or (now, "clock")
        asked = (
            (skew.captured_from, skew.captured_until) if clock == "requests" else (skew.window_start, skew.window_end)
        )
        span = (skew.windows or {}).get("current") or asked
        rows = int(report.metrics.get("rows_current") or 0)
        address = (report.uri, report.fingerprint)
        return cls(time, clock, skew, address, rows, tuple(span), unwell=skew.unwell, **known)  # type: ignore[arg-type]

    @property
    def judged(self) -> bool:
        """Returns whether the comparison could judge drift: there were enough rows, and no pipeline fault."""
        return self.skew.verdict not in (INSUFFICIENT, PIPELINE_FAULT)

    @property
    def empty(self) -> bool:
        """Returns whether nothing was compared, so that the comparison has no time."""
        return not self.rows and moment_of(self.skew) is None

    @property
    def reference(self) -> str:
        """Returns the fingerprint of the served model's training data; empty for two spans, which have no model."""
        compared = self.skew.reference
        return compared.fingerprint if compared.model else ""

    @property
    def reference_in_words(self) -> str:
        """Describes the reference data in words."""
        reference = self.skew.reference
        return f"the training data of version {reference.version}" if reference.version else reference.statistics


def moment_of(skew: SkewProperties) -> tuple[datetime, Clock] | None:
    """Returns the end of the compared data and its clock; None if it has no time."""
    if skew.window_end is not None:
        return as_utc(skew.window_end), "data"
    if skew.captured_until is not None:
        return as_utc(skew.captured_until), "requests"
    return None
