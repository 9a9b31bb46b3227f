"""The comparison of a step of the skew stage, on its way into the artifact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_hops.core.contract.artifacts import RowCounts
from airflow_hops.core.contract.skew import SkewProperties, SkewReference
from airflow_hops.ml.monitoring.skew.report import SkewReport

if TYPE_CHECKING:
    from airflow_hops.ml.monitoring.skew.attribution import Attribution
    from airflow_hops.ml.monitoring.skew.rows import RowSkewReport


@dataclass(frozen=True)
class Compared:
    """A comparison and what is known of its sides.

    Attributes:
        report: What came of it.
        reference: The reference's statistics.
        current: The current rows' statistics; None if there were too few rows.
        origin: Where the reference comes from.
        facts: What is known of the current rows; ``window_end`` at least.
        rows: Row counts of the artifact.
        attribution: Effects on predictions; None if they were not looked for.
        row_skew: The comparison of single rows; None if there was none.
        notes: Why something is not there.
        done: To be called when the artifact is committed.
    """

    report: SkewReport
    reference: Any
    current: Any
    origin: SkewReference
    facts: Mapping[str, Any]
    rows: Mapping[str, RowCounts]
    attribution: Attribution | None = None
    row_skew: RowSkewReport | None = None
    notes: tuple[str, ...] = ()
    done: Callable[[], None] = lambda: None

    @property
    def effects(self) -> dict[str, float]:
        """How much the drift of each feature moves a prediction, where that was computed."""
        return {name: result.effect for name, result in self.attribution.effects.items()} if self.attribution else {}

    @property
    def properties(self) -> SkewProperties:
        """The properties of the artifact."""
        report, effects = self.report, self.effects
        return SkewProperties(
            verdict=report.verdict,
            drifted=report.drifted,
            lost=report.lost,
            causes=report.causes,
            effects={name: effects[name] for name in report.drifted if name in effects},
            problem=self.attribution.problem if self.attribution else None,
            skewed=tuple(self.row_skew.skewed) if self.row_skew else (),
            reference=self.origin,
            min_rows=report.min_rows,
            scores={name: (skew.score, skew.threshold) for name, skew in report.features.items()},
            **self.facts,
        )
