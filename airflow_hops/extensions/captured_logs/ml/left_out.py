"""Counts of the rows of a log that are left out, by reason, and whether they are too many."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from airflow_hops.extensions.captured_logs.ml.json_texts import Unusable

log = logging.getLogger(__name__)

_MOST_REASONS = 100
_OTHERS = "of further reasons"


@dataclass
class LeftOut:
    """Counts rows that are left out.

    Attributes:
        rows: Number of rows by reason.
        faults: Number of rows that the window should have taken, but that cannot be read.
        details: Description of the first row of each reason.
    """

    rows: dict[str, int] = field(default_factory=dict)
    faults: int = 0
    details: dict[str, str] = field(default_factory=dict)

    def add(self, why: Unusable, rows: int = 1, *, is_said: bool = False) -> None:
        """Counts rows, and logs the first of each reason; with ``is_said`` they are no faults of this window."""
        if not rows:
            return
        reason = why.reason
        if reason not in self.rows and len(self.rows) >= _MOST_REASONS:  # names that clients choose may be in them
            reason = _OTHERS
        if reason not in self.rows:
            self.rows[reason] = 0
            self.details[reason] = why.detail
            if why.detail:
                log.warning("%s; left out, as others of the reason: %s", why.detail, reason)
        self.rows[reason] += rows
        self.faults += rows if why.is_fault and not is_said else 0
