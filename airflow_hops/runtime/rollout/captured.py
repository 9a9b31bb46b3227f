"""What the server captured of a version's answers, and the labels that came later."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.runtime.rollout.comparisons import LabelledRows

_CAPTURED_ROWS = 200_000
"""Captured rows of a version that are read at most, the newest."""


@dataclass(frozen=True)
class Captured:
    """Answers of one version.

    Attributes:
        outputs: Name of a numeric output to its values, flat.
        table: The rows as they were captured, an Arrow table of ``request_id``, ``row`` and the numeric outputs; None
            where there are none.
    """

    outputs: dict[str, np.ndarray] = field(default_factory=dict)
    table: Any = None


def read_captured(folder: Path, version: int, since: datetime) -> Captured:
    """Reads the numeric outputs of a version that were captured since a time.

    Args:
        folder: ``<capture_base_path>/<model>``.
        version: The version.
        since: The time, with a zone.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    stamp = since.strftime("%Y%m%dT%H%M%S")
    tables = []
    rows = 0
    for path in sorted(folder.glob(f"*-v{version}-*.parquet"), reverse=True):
        if path.name[: len(stamp)] < stamp or rows >= _CAPTURED_ROWS:
            break
        file = pq.ParquetFile(path)
        names = [
            column.name
            for column in file.schema_arrow
            if column.name.startswith("output.") and _is_numeric(column.type, pa)
        ]
        table = file.read(columns=["request_id", "row", *names, "captured_at"])
        table = table.filter(
            pa.compute.greater_equal(table["captured_at"], pa.scalar(since, pa.timestamp("us", "UTC")))
        )
        rows += table.num_rows
        tables.append(table)
    if not tables:
        return Captured()
    table = pa.concat_tables(tables, promote=True)
    outputs = {
        name.removeprefix("output."): _flat(table[name].drop_null())
        for name in table.column_names
        if name.startswith("output.")
    }
    return Captured(outputs, table)


def read_labelled(captured: Captured, folder: Path, output: str) -> LabelledRows | None:
    """Joins captured answers with the feedback that came later, by request id and row.

    Args:
        captured: A version's answers.
        folder: ``<capture_base_path>/<model>``, which holds ``_feedback``.
        output: The output that predicts the label, one value a row.

    Returns:
        The rows whose label is known; None where there is no feedback, or no such output.
    """
    import pyarrow.parquet as pq

    files = sorted((folder / "_feedback").glob("[!._]*.parquet"))
    name = f"output.{output}"
    if captured.table is None or not files or name not in captured.table.column_names:
        return None
    labels: dict[tuple[str, int], float] = {}
    for path in files:
        for row in pq.read_table(path).to_pylist():
            value = _label_of(row)
            if value is not None:
                labels[str(row["request_id"]), int(row.get("row") or 0)] = value
    predictions, found = [], []
    keys = zip(captured.table["request_id"].to_pylist(), captured.table["row"].to_pylist(), strict=True)
    for key, value in zip(keys, captured.table[name].to_pylist(), strict=True):
        label = labels.get(key)
        if label is not None and isinstance(value, int | float):
            predictions.append(float(value))
            found.append(label)
    return LabelledRows(np.array(predictions), np.array(found))


def _label_of(row: dict[str, Any]) -> float | None:
    """The only label of a row of feedback."""
    values = [value for name, value in row.items() if name == "label" or name.startswith("label.")]
    known = [value for value in values if isinstance(value, int | float)]
    return float(known[0]) if len(known) == 1 else None


def _flat(column: Any) -> np.ndarray:
    import pyarrow as pa

    while pa.types.is_list(column.type):
        column = pa.compute.list_flatten(column)
    values: np.ndarray = column.to_numpy().astype(float)
    return values


def _is_numeric(kind: Any, pa: Any) -> bool:
    while pa.types.is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
