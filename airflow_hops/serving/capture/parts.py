"""Parts of one batch of records, each one file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from airflow_hops.core.serving_api.capture_layout import (
    FEEDBACK_FOLDER,
    PREDICTION_LOG_FOLDER,
    SHADOW_FOLDER,
    folder_name,
)
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.capture.record import CapturedCall, CapturedLabel
from airflow_hops.serving.capture.tables import CallTables
from airflow_hops.serving.capture.waiting import WaitingRecords
from airflow_hops.serving.prediction_log import to_record

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """One file to be.

    Attributes:
        model: Model name.
        folder: Its folder, below the base path.
        tail: Its name's beginning, behind the time.
        ending: Its name's end.
        rows: Rows of requests that it holds; 0 if they are counted for another part.
        labels: Labels that it holds.
        encode: Gives its bytes.
    """

    model: str
    folder: str
    tail: str
    ending: str
    rows: int
    labels: int
    encode: Callable[[], bytes]


@dataclass
class Batch:
    """The parts of a batch: the same ones each time, from the same records and options.

    Attributes:
        parts: The parts, in order.
        failed_rows: Rows by model that could not be decoded.
    """

    parts: list[Part] = field(default_factory=list)
    failed_rows: dict[str, int] = field(default_factory=dict)


def make_batch(waiting: WaitingRecords, options: CaptureOptions) -> Batch:
    """Sorts records into files.

    Args:
        waiting: All that are to be in it.
        options: Modes and formats.
    """
    batch = Batch()
    tables = CallTables(options.mode, options.roll_rows)
    logged: dict[tuple[str, int], list[CapturedCall]] = {}
    for call in waiting.calls:
        if options.format != "parquet" and not call.shadow:
            logged.setdefault((call.model, call.version), []).append(call)
            if options.format == "prediction_log":
                continue
        try:
            tables.add(call)
        except Exception as error:
            if call.model not in batch.failed_rows:
                what = "request %r of model %s is no row, as others after it may be: %s"
                log.error(f"capture: {what}", call.request_id, call.model, error)
            batch.failed_rows[call.model] = batch.failed_rows.get(call.model, 0) + call.rows
    labels: dict[tuple[Any, ...], list[CapturedLabel]] = {}
    for label in waiting.labels:
        types = tuple(sorted((name, type(value).__name__) for name, value in label.values.items()))
        labels.setdefault((label.model, types), []).append(label)
    for group in tables.groups:
        folder = _folder(group.model, group.shadow)
        encode = partial(_parquet, group.to_table)
        batch.parts.append(Part(group.model, folder, f"v{group.version}", "parquet", group.total_rows, 0, encode))
    for (model, version), calls in logged.items():
        rows = sum(call.rows for call in calls) if options.format == "prediction_log" else 0
        encode = partial(_prediction_logs, calls)
        folder = f"{folder_name(model)}/{PREDICTION_LOG_FOLDER}"
        batch.parts.append(Part(model, folder, f"v{version}", "tfrecord", rows, 0, encode))
    for (model, _), values in labels.items():
        folder = f"{folder_name(model)}/{FEEDBACK_FOLDER}"
        encode = partial(_parquet, partial(labels_table, values))
        batch.parts.append(Part(model, folder, "labels", "parquet", 0, len(values), encode))
    return batch


def labels_table(labels: list[CapturedLabel]) -> Any:
    """Returns labels of the same names and types as one Arrow table."""
    import pyarrow as pa

    columns = {
        "request_id": pa.array([label.request_id for label in labels], pa.string()),
        "row": pa.array([label.row for label in labels], pa.int32()),
        "at": _times([label.at_us for label in labels]),
        "received_at": _times([label.received_us for label in labels]),
    }
    for name in sorted(labels[0].values):
        columns[f"label.{name}"] = pa.array([label.values[name] for label in labels])
    return pa.table(columns)


def _times(us: list[int]) -> Any:
    import pyarrow as pa

    return pa.array(us, pa.int64()).cast(pa.timestamp("us", "UTC"))


def _folder(model: str, shadow: bool) -> str:
    name = folder_name(model)
    return f"{name}/{SHADOW_FOLDER}" if shadow else name


def _parquet(make_table: Callable[[], Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(make_table(), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _prediction_logs(calls: list[CapturedCall]) -> bytes:
    return b"".join([to_record(call.method, call.request, call.response, call.at_us // 10**6) for call in calls])
