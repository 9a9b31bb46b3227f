"""Records that are in no file yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Self

from airflow_hops.serving.capture.record import CapturedCall, CapturedLabel, unpack


class WaitingRecords:
    """The records of one batch to be.

    Attributes:
        calls: Requests, in order.
        labels: Labels, in order.
        size_bytes: How long their records are together.
    """

    def __init__(self) -> None:
        self.calls: list[CapturedCall] = []
        self.labels: list[CapturedLabel] = []
        self.size_bytes = 0
        self._rows: Counter[tuple[str, int, bool]] = Counter()

    @classmethod
    def of(cls, records: Iterable[bytes]) -> Self:
        """Sorts records."""
        waiting = cls()
        for record in records:
            waiting.add(record)
        return waiting

    @property
    def count(self) -> int:
        """How many records there are."""
        return len(self.calls) + len(self.labels)

    @property
    def most_rows(self) -> int:
        """Rows of the model and version that has most of them, or labels where those are more."""
        return max(len(self.labels), *self._rows.values(), 0)

    def add(self, record: bytes) -> None:
        """Adds the record that follows."""
        unpacked = unpack(record)
        self.size_bytes += len(record)
        if isinstance(unpacked, CapturedLabel):
            self.labels.append(unpacked)
        else:
            self.calls.append(unpacked)
            self._rows[unpacked.model, unpacked.version, unpacked.shadow] += unpacked.rows
