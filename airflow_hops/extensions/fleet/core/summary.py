"""Names of a fleet's files, and its index as JSON, for its page: the API server reads no Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_hops.core.json_fields import CheckedFields

FLEET_FILE = "fleet.json"
"""File by which a version folder with a fleet is recognised."""
SUMMARY_FILE = "summary.json"
"""File of a fleet's artifact, beside the folder that is served: :class:`SegmentTable`."""

_IN_FILE = 100


def statistics_file(position: int) -> str:
    """Returns the file with statistics of the training rows of the segment at a position of the index.

    It holds a JSON object: ``groups``, the segment's groups by column, and ``statistics`` by column, of each segment.
    """
    return f"statistics/{position // _IN_FILE:03}.json"


@dataclass(frozen=True)
class SegmentTable(CheckedFields):
    """The index of a fleet: a list for each fact, with an item for each segment, sorted by key.

    Attributes:
        segment: The column whose value is the segment's key.
        loss: The loss in words, such as ``squared error``.
        segments: Keys.
        states: ``own``, ``continued`` or ``pooled``.
        reasons: Why the segment has that model, in words.
        rows: Training rows.
        losses: Mean loss of the model that answers the segment, on its held-out rows.
        pooled_losses: Mean loss of the pooled model on the same rows.
        digests: Beginning of the SHA-256 of the segment's model; null for one that the pooled model answers.
    """

    segment: str
    loss: str
    segments: Sequence[str]
    states: Sequence[str]
    reasons: Sequence[str]
    rows: Sequence[int]
    losses: Sequence[float | None]
    pooled_losses: Sequence[float | None]
    digests: Sequence[str | None]

    def __post_init__(self) -> None:
        if any(len(each) != len(self.segments) for each in vars(self).values() if isinstance(each, list | tuple)):
            raise TypeError("the lists differ in length")
