"""What the server captured of a version's answers, and the labels that came later."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.runtime.captured.feedback import LABEL, join_feedback
from airflow_hops.runtime.captured.requests import CapturedRequests
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


def read_captured(requests: CapturedRequests, version: int, since: datetime, scratch: Path) -> Captured:
    """Reads the numeric outputs of a version that were captured since a time.

    Args:
        requests: What was captured of the model.
        version: The version.
        since: The time, with a zone.
        scratch: Folder for copies of files that lie elsewhere.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from airflow_hops.data.readers.raw_file import explained

    stamp = since.strftime("%Y%m%dT%H%M%S")
    tables = []
    rows = 0
    for name in reversed(requests.names(version)):
        if name[: len(stamp)] < stamp or rows >= _CAPTURED_ROWS:
            break
        (rows_file,) = requests.fetch([name], scratch)
        file = pq.ParquetFile(rows_file.path)
        with explained(str(rows_file)):
            columns = file.schema_arrow
        names = [
            column.name for column in columns if column.name.startswith("output.") and _is_numeric(column.type, pa)
        ]
        table = file.read(columns=["request_id", "row", *names, "captured_at"])
        table = table.filter(pc.greater_equal(table["captured_at"], pa.scalar(since, pa.timestamp("us", "UTC"))))
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


def read_labelled(captured: Captured, feedback: Any) -> dict[str, LabelledRows]:
    """Joins captured answers with the labels that came later, by request id and row.

    A label that is named like an output is of that output. Otherwise the only label is of the only output.

    Args:
        captured: A version's answers.
        feedback: The labels, as :func:`~airflow_hops.runtime.captured.feedback.read_feedback` returns them.

    Returns:
        Name of an output to the rows whose label is known; empty where no label is a number or a truth value.
    """
    import pyarrow as pa

    if captured.table is None or not feedback.num_rows:
        return {}
    joined = join_feedback(captured.table, feedback)
    labels = [name.removeprefix(LABEL) for name in joined.column_names if name.startswith(LABEL)]
    outputs = list(captured.outputs)
    pairs = {output: output for output in outputs if output in labels}
    if not pairs and len(outputs) == len(labels) == 1:
        pairs = {outputs[0]: labels[0]}
    found = {}
    for output, label in pairs.items():
        both = pa.table({"prediction": joined[f"output.{output}"], "label": joined[LABEL + label]}).drop_null()
        plain = [_is_plain_number(column.type, pa) for column in both.columns]
        if both.num_rows and all(plain):
            columns = (column.cast(pa.float64()).to_numpy() for column in both.columns)
            found[output] = LabelledRows(*columns)
    return found


def _flat(column: Any) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    while pa.types.is_list(column.type):
        column = pc.list_flatten(column)
    values: np.ndarray = column.to_numpy().astype(float)
    return values


def _is_plain_number(kind: Any, pa: Any) -> bool:
    return bool(pa.types.is_boolean(kind) or pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_numeric(kind: Any, pa: Any) -> bool:
    while pa.types.is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
