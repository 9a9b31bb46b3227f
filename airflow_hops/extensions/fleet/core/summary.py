"""Files that the page of a fleet reads: the index as JSON, and what a comparison of the segments has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_hops.core.json_fields import CheckedFields, JsonFields

SUMMARY_FILE = "summary.json"
"""File of a fleet's artifact, beside the folder that is served: :class:`FleetSummary`."""
FINDINGS_FILE = "findings.json"
"""File of an artifact that compares the data of segments: :class:`FleetFindings`."""


@dataclass(frozen=True)
class FleetSummary(CheckedFields):
    """The index of a fleet for the page: a list for each fact, with an item for each segment, sorted by key.

    Attributes:
        segment: The column whose value is the segment's key.
        loss: The loss in words, such as ``squared error``.
        segments: Keys.
        states: ``own``, ``continued`` or ``pooled``.
        reasons: Why the segment has that model, in words.
        rows: Training rows.
        losses: Mean loss of the model that answers the segment, on its held-out rows.
        pooled_losses: Mean loss of the pooled model on the same rows.
        fingerprints: Beginning of the fingerprint of the segment's model; two versions
            with the same one have the same model.
    """

    segment: str
    loss: str
    segments: Sequence[str]
    states: Sequence[str]
    reasons: Sequence[str]
    rows: Sequence[int]
    losses: Sequence[float | None]
    pooled_losses: Sequence[float | None]
    fingerprints: Sequence[str | None]


@dataclass(frozen=True)
class SegmentFinding(CheckedFields):
    """A finding of a comparison: that columns of one segment, or of a group of segments together, have changed.

    Attributes:
        group: The group in words, such as ``region=North``; empty for one segment.
        segments: Keys of its segments.
        columns: The columns that changed, the most certain first.
        words: The finding in a sentence.
        q_value: Largest rate of false discoveries at which it would not be found.
    """

    group: str
    segments: Sequence[str]
    columns: Sequence[str]
    words: str
    q_value: float


@dataclass(frozen=True)
class FleetFindings(JsonFields):
    """The findings of a comparison.

    Attributes:
        segments: Number of compared segments.
        tests: Number of tests, one for each segment and column.
        rate: Allowed rate of false discoveries.
        findings: The findings, the most certain first.
    """

    segments: int
    tests: int
    rate: float
    findings: tuple[SegmentFinding, ...] = ()
