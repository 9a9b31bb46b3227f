"""What a step of the skew stage has compared, on its way into the artifact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_hops.contract.artifacts import RowCounts
from airflow_hops.contract.skew import SkewReference
from airflow_hops.runtime.skew.report import SkewReport

if TYPE_CHECKING:
    from airflow_hops.runtime.skew.attribution import Attribution
    from airflow_hops.runtime.skew.rows import RowSkewReport


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
