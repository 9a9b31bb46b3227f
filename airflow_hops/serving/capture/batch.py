"""Turns one batch of records of the spool into the contents of files."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from airflow_hops.core.capture_layout import FEEDBACK_FOLDER, folder_name
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.capture.record import CapturedCall, CapturedLabel, unpack
from airflow_hops.serving.capture.rows import CallTables

log = logging.getLogger(__name__)


class WaitingRecords:
    """The records of the next batch.

    Attributes:
        calls: Requests, in order.
        labels: Labels, in order.
        size_bytes: Total length of the records.
    """

    def __init__(self) -> None:
        self.calls: list[CapturedCall] = []
        self.labels: list[CapturedLabel] = []
        self.size_bytes = 0
        self._rows: Counter[tuple[str, int]] = Counter()

    @classmethod
    def of(cls, records: Iterable[bytes]) -> Self:
        """Decodes records."""
        waiting = cls()
        for record in records:
            waiting.add(record)
        return waiting

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.calls) + len(self.labels)

    @property
    def most_rows(self) -> int:
        """Largest number of rows of one model and version, or the number of labels if that is larger."""
        return max(len(self.labels), *self._rows.values(), 0)

    def add(self, record: bytes) -> None:
        """Adds the next record."""
        unpacked = unpack(record)
        self.size_bytes += len(record)
        if isinstance(unpacked, CapturedLabel):
            self.labels.append(unpacked)
        else:
            self.calls.append(unpacked)
            self._rows[unpacked.model, unpacked.version] += unpacked.rows


@dataclass(frozen=True)
class BatchFile:
    """One file to write.

    Attributes:
        model: Model name.
        folder: Folder below the base path.
        tail: Start of the part of the file name that follows the time.
        rows: Number of rows of requests in the file.
        labels: Number of labels in the file.
        table: Returns the rows as an Arrow table.
    """

    model: str
    folder: str
    tail: str
    rows: int
    labels: int
    table: Callable[[], Any]

    def encode(self) -> bytes:
        """Returns the content of the file."""
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        write_parquet(self.table(), sink)
        content: bytes = sink.getvalue().to_pybytes()
        return content


@dataclass
class Batch:
    """The parts of a batch; the same records and options always give the same parts.

    Attributes:
        parts: The parts, in order.
        failed_rows: Number of rows that could not be decoded, by model.
    """

    parts: list[BatchFile] = field(default_factory=list)
    failed_rows: Counter[str] = field(default_factory=Counter)


def make_batch(waiting: WaitingRecords, options: CaptureOptions) -> Batch:
    """Groups records into files."""
    batch = Batch()
    tables = CallTables(options.mode, options.roll_rows)
    for call in waiting.calls:
        try:
            tables.add(call)
        except Exception as error:
            if call.model not in batch.failed_rows:
                what = "request %r of model %s cannot be decoded, and later ones may fail as well: %s"
                log.error(f"capture: {what}", call.request_id, call.model, error)
            batch.failed_rows[call.model] += call.rows
    for group in tables.groups:
        folder, tail = folder_name(group.model), f"v{group.version}"
        batch.parts.append(BatchFile(group.model, folder, tail, group.total_rows, 0, group.to_table))
    labels: dict[tuple[Any, ...], list[CapturedLabel]] = {}
    for label in waiting.labels:
        types = tuple(sorted((name, type(value).__name__) for name, value in label.values.items()))
        labels.setdefault((label.model, types), []).append(label)
    for (model, _), values in labels.items():
        folder = f"{folder_name(model)}/{FEEDBACK_FOLDER}"
        batch.parts.append(BatchFile(model, folder, "labels", 0, len(values), partial(labels_table, values)))
    return batch


def labels_table(labels: list[CapturedLabel]) -> object:
    """Returns labels with the same names and types as one Arrow table."""
    import pyarrow as pa

    time = pa.timestamp("us", "UTC")
    columns = {
        "request_id": pa.array([label.request_id for label in labels], pa.string()),
        "row": pa.array([label.row for label in labels], pa.int32()),
        "at": pa.array([label.at_us for label in labels], time),
        "received_at": pa.array([label.received_us for label in labels], time),
    }
    for name in sorted(labels[0].values):
        columns[f"label.{name}"] = pa.array([label.values[name] for label in labels])
    return pa.table(columns)
