"""Names of a fleet's files, and its index as JSON, for its page: the API server reads no Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
        column: The column whose value is the segment's key; None if there is no fleet.
        loss_in_words: The loss, such as ``squared error``.
        segment: Keys.
        state: ``own``, ``continued`` or ``pooled``.
        reason: Why the segment has that model, in words.
        rows: Training rows.
        loss: Mean loss of the model that answers the segment, on its held-out rows.
        pooled_loss: Mean loss of the pooled model on the same rows.
        digest: Beginning of the SHA-256 of the segment's model; null for one that the pooled model answers.
    """

    column: str | None
    loss_in_words: str
    segment: Sequence[str] = ()
    state: Sequence[str] = ()
    reason: Sequence[str] = ()
    rows: Sequence[int] = ()
    loss: Sequence[float | None] = ()
    pooled_loss: Sequence[float | None] = ()
    digest: Sequence[str | None] = ()

    def __post_init__(self) -> None:
        if any(len(each) != len(self.segment) for each in vars(self).values() if isinstance(each, list | tuple)):
            raise TypeError("the lists differ in length")

    def row(self, position: int) -> dict[str, Any]:
        """Returns the facts of a segment, by attribute."""
        return {name: each[position] for name, each in vars(self).items() if isinstance(each, list | tuple)}
