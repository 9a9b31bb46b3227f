"""The facts on which the decision to retrain is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Self

from airflow_hops.core.contract.artifacts import Artifact
from airflow_hops.core.contract.properties import Window
from airflow_hops.core.contract.skew import INSUFFICIENT, PIPELINE_FAULT, SkewProperties

Clock = Literal["data", "requests", "clock"]
"""Whose time a decision is of: the compared rows' own, that at which requests were served, or, without any, now."""


@dataclass(frozen=True)
class Situation:
    """The facts at one comparison.

    Attributes:
        at: Time of the decision: the end of the compared data, never the present unless the data has no time.
        clock: Whose time that is.
        skew: Verdict, drifted features, causes and effects of the comparison.
        report: The comparison: URI and fingerprint.
        rows: Rows that were compared with the reference.
        span: Start and end of the compared rows, ISO 8601 UTC, where known.
        trained_until: End of the champion's training data; None if that is not known.
        rollout: The rollout that is under way, in words; None for none.
        in_flight: The retraining that is under way, in words; None for none.
        unsent: Causes of earlier requests that never left: the task ended between the record and the event.
        unwell: What is wrong with the monitor itself, in words.
        measured: The newest ``performance`` artifact; None if there is none.
        unmeasured: Why there is none although there is a task for it, in words; empty otherwise.
        costs: What earlier requests have cost so far, by cause: CPU seconds, and seconds times GPUs.
        now: The present, by which requests of another clock are counted.
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
    measured: Artifact | None = None
    unmeasured: str = ""
    costs: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @classmethod
    def of(cls, report: Artifact, now: datetime, **known: object) -> Self:
        """The situation at a comparison.

        Args:
            report: The ``skew`` artifact.
            now: The time of a comparison of data that has none.
            **known: Other fields.
        """
        skew = SkewProperties.of(report)
        at, clock = moment_of(skew) or (now, "clock")
        asked = (
            (skew.captured_from, skew.captured_until) if clock == "requests" else (skew.window_start, skew.window_end)
        )
        span = (skew.windows or {}).get("current") or asked
        rows = int(report.metrics.get("rows_current") or 0)
        address = (report.uri, report.fingerprint)
        return cls(at, clock, skew, address, rows, tuple(span), unwell=skew.unwell, **known)  # type: ignore[arg-type]

    @property
    def judged(self) -> bool:
        """Whether the comparison says anything of drift: there were enough rows, and no fault of the pipeline."""
        return self.skew.verdict not in (INSUFFICIENT, PIPELINE_FAULT)

    @property
    def empty(self) -> bool:
        """Whether nothing was compared, so that the comparison has no time of its own."""
        return not self.rows and moment_of(self.skew) is None

    @property
    def reference(self) -> str:
        """Fingerprint of the data that the served model was trained on; empty of two spans, which have no model."""
        of = self.skew.reference
        return of.fingerprint if of.model else ""

    @property
    def reference_in_words(self) -> str:
        """Describes the reference data in words."""
        of = self.skew.reference
        return f"the training data of version {of.version}" if of.version else of.statistics


def moment_of(skew: SkewProperties) -> tuple[datetime, Clock] | None:
    """The end of what was compared, and whose time that is; None if it has no time."""
    if skew.window_end is not None:
        return as_utc(skew.window_end), "data"
    if skew.captured_until is not None:
        return as_utc(skew.captured_until), "requests"
    return None


def as_utc(text: str) -> datetime:
    """A time of ISO 8601; UTC where it names no zone."""
    time = datetime.fromisoformat(text)
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
