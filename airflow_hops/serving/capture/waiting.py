"""Records that are in no file yet, sorted as they come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from airflow_hops.serving.capture.record import is_label, likeness, unpack


@dataclass(slots=True)
class _Count:
    rows: int = 0


@dataclass(slots=True)
class AlikeRecords:
    """Requests of one likeness.

    Attributes:
        rows: Rows of each.
        shadow: Whether their answers were compared, and not returned.
        counted: Counts the rows of all requests that go to the same files.
        records: Each with its number among all that wait.
    """

    rows: int
    shadow: bool
    counted: _Count
    records: list[tuple[int, bytes]] = field(default_factory=list)


class WaitingRecords:
    """The records of one batch to be.

    Attributes:
        alike: Requests, by what makes them alike.
        labels: Labels, in order.
        count: How many records there are.
        size_bytes: How long they are together.
        most_rows: Rows of the model and version that has most of them, or labels where those are more.
    """

    def __init__(self) -> None:
        self.alike: dict[tuple[object, ...], AlikeRecords] = {}
        self.labels: list[bytes] = []
        self.count = self.size_bytes = self.most_rows = 0
        self._counts: dict[tuple[str, int, bool], _Count] = {}

    @classmethod
    def of(cls, records: Iterable[bytes]) -> Self:
        """Sorts records."""
        waiting = cls()
        for record in records:
            waiting.add(record)
        return waiting

    def add(self, record: bytes) -> None:
        """Adds the record that follows."""
        if is_label(record):
            self.labels.append(record)
            rows = len(self.labels)
        else:
            key = likeness(record)
            alike = self.alike.get(key)
            if alike is None:
                alike = self.alike[key] = self._begin(record)
            alike.records.append((self.count, record))
            rows = alike.counted.rows = alike.counted.rows + alike.rows
        self.count += 1
        self.size_bytes += len(record)
        if rows > self.most_rows:
            self.most_rows = rows

    def _begin(self, record: bytes) -> AlikeRecords:
        call = unpack(record)
        counted = self._counts.setdefault((call.model, call.version, call.shadow), _Count())
        return AlikeRecords(call.rows, call.shadow, counted)
