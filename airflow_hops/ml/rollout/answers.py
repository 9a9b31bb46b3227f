"""Reads captured answers of a version, and the labels that arrived later."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from airflow_hops.core.artifacts.target import BINARY, CLASS, MULTICLASS, OUTPUTS, REGRESSION
from airflow_hops.ml.captured.feedback import LABEL, join_feedback
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.captured.scored import assigned_units
from airflow_hops.ml.captured.values import as_number, class_numbers, dense_values
from airflow_hops.ml.rollout.labels import LabelledAnswers
from airflow_hops.ml.rollout.predictions import Answers

if TYPE_CHECKING:
    import pyarrow as pa

CAPTURED_ROWS = 200_000
"""Maximum captured rows read per version, newest first."""

_MAX_CLASSES = 100
"""Maximum number of classes whose probabilities are compared individually."""

_PROBLEMS = {output: problem for problem, output in OUTPUTS.items()}


@dataclass(frozen=True)
class Captured:
    """Answers of one version.

    Attributes:
        outputs: Numeric outputs by name, flat; ``probabilities`` of up to 100 classes [rows, classes]. Only the
            predictions, if the model's signature identifies them.
        table: Captured rows, an Arrow table of ``request_id``, ``row``, ``captured_at`` and the numeric outputs; None
            if there are none.
    """

    outputs: dict[str, Answers] = field(default_factory=dict)
    table: pa.Table | None = None

    def of_classes(self, mine: Sequence[str] | None, wanted: Sequence[str] | None) -> Captured:
        """Selects the probabilities of some classes, in their order; ``probability`` is that of the second class.

        Args:
            mine: The version's classes, in the order of its outputs; None if unknown.
            wanted: Some of these classes; None to change nothing.
        """
        if mine is None or wanted is None:
            return self
        outputs = dict(self.outputs)
        both, several = outputs.get(OUTPUTS[BINARY]), outputs.get(OUTPUTS[MULTICLASS])
        if both is not None and len(mine) == 2 and list(wanted) == [mine[1], mine[0]]:
            outputs[OUTPUTS[BINARY]] = replace(both, values=1 - both.values)
        if several is not None and several.values.ndim == 2 and several.values.shape[1] == len(mine):
            columns = several.values[:, [list(mine).index(name) for name in wanted]]
            outputs[OUTPUTS[MULTICLASS]] = replace(several, values=columns)
        return replace(self, outputs=outputs)


def files_since(requests: CapturedRequests, version: int, since: datetime) -> list[str]:
    """Returns names of the files of a version's rows that were captured since a time with a zone, newest first."""
    stamp = since.strftime("%Y%m%dT%H%M%S")
    return [name for name in reversed(requests.names(version)) if name[: len(stamp)] >= stamp]


def read_captured(requests: CapturedRequests, version: int, since: datetime, ids: pa.Array | None = None) -> Captured:
    """Reads the numeric outputs of a version captured since a time with a zone, of all requests or ``ids``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    tables = []
    rows = 0
    for name in files_since(requests, version, since):
        if rows >= CAPTURED_ROWS:
            break
        schema = requests.footer(name).schema.to_arrow_schema()
        numeric = [c.name for c in schema if c.name.startswith("output.") and _is_numeric(c.type)]
        numeric = [column for column in numeric if column.removeprefix("output.") in _PROBLEMS] or numeric
        table = requests.table(name, ["request_id", "row", *({"api"} & {*schema.names}), *numeric, "captured_at"])
        table = table.filter(pc.greater_equal(table["captured_at"], pa.scalar(since, pa.timestamp("us", "UTC"))))
        if ids is not None:
            table = table.filter(pc.is_in(table["request_id"].cast(pa.string()), value_set=ids))
        rows += table.num_rows
        tables.append(table)
    if not tables:
        return Captured()
    table = pa.concat_tables(tables, promote=True)
    outputs = {
        name.removeprefix("output."): _answers(table, name) for name in table.column_names if name.startswith("output.")
    }
    return Captured({name: v for name, v in outputs.items() if name in _PROBLEMS} or outputs, table)


def _answers(table: pa.Table, column: str) -> Answers:
    import pyarrow as pa
    import pyarrow.compute as pc

    known = table.filter(table[column].is_valid())
    values, requests = dense_values(known[column], wide=column == f"output.{OUTPUTS[MULTICLASS]}"), _numbers(known)
    if values.ndim == 2 and values.shape[1] <= _MAX_CLASSES:
        return Answers(values, requests)
    array = known[column].combine_chunks()
    while pa.types.is_list(array.type):
        requests, array = requests[pc.list_parent_indices(array).to_numpy()], pc.list_flatten(array)
    return Answers(values.reshape(-1), requests)


def _numbers(table: pa.Table) -> np.ndarray:
    """Returns the number of each row's request, or of a scored row's key."""
    ids = assigned_units(table).fill_null("").combine_chunks()
    numbers: np.ndarray = ids.dictionary_encode().indices.to_numpy()
    return numbers


def read_labelled(
    captured: Captured,
    feedback: pa.Table,
    label: str | None = None,
    classes: Sequence[str] | None = None,
    known: Collection[str] | None = None,
    further: Collection[str] = (),
    steps: Sequence[datetime] = (),
) -> dict[str, LabelledAnswers]:
    """Joins captured answers with the labels that arrived later, by request ID and row.

    A label named like an output belongs to that output, and one named like the model's label column to the prediction.
    Otherwise a single label belongs to a single output. Classes are given by name or number. Further labels, and labels
    named like their outputs, are left out.

    Args:
        captured: A version's answers.
        feedback: Labels from :func:`~airflow_hops.ml.captured.feedback.read_feedback`.
        label: Name of the model's label column.
        classes: Names of the version's classes, in the order of its outputs.
        known: Classes to use; None for all.
        further: Names of further labels.
        steps: When the shares of the traffic changed, ascending.

    Returns:
        Rows with a known label, by output.
    """
    import pyarrow.compute as pc

    if captured.table is None or not feedback.num_rows:
        return {}
    joined = join_feedback(captured.table, feedback)
    others = {*further, *(f"{name}_{output}" for name in further for output in (*_PROBLEMS, CLASS))} - {label}
    arguments = (name.removeprefix(LABEL) for name in joined.column_names if name.startswith(LABEL))
    labels = [name for name in arguments if name not in others]
    outputs = list(captured.outputs)
    pairs = {output: output for output in outputs if output in labels}
    if not pairs and (label in labels or len(labels) == 1):
        only = label if label in labels and label is not None else labels[0]
        pairs = {output: only for output in outputs if output in _PROBLEMS}
    if not pairs and len(outputs) == len(labels) == 1:
        pairs = {outputs[0]: labels[0]}
    times = np.array([time.astimezone(UTC).replace(tzinfo=None) for time in steps], "datetime64[us]")
    results = {}
    for output, name in pairs.items():
        columns = {"request_id": "request_id", "captured_at": "captured_at", "prediction": f"output.{output}"}
        columns |= {"label": LABEL + name} | ({"api": "api"} if "api" in joined.column_names else {})
        both = joined.select([*columns.values()]).rename_columns([*columns])
        both = both.filter(pc.and_(both["prediction"].is_valid(), both["label"].is_valid()))
        problem = _PROBLEMS.get(output)
        predictions, values = dense_values(both["prediction"], wide=output == OUTPUTS[MULTICLASS]), both["label"]
        if len(predictions) != len(values) or predictions.ndim != (2 if problem == MULTICLASS else 1):
            continue
        if problem in (BINARY, MULTICLASS):
            numbers = class_numbers(values.to_pylist(), classes, known)
        elif problem == REGRESSION or _is_plain_number(values.type):
            numbers = np.array([as_number(value) for value in values.to_pylist()], np.float64)
        else:
            continue
        width = 2 if predictions.ndim == 1 else predictions.shape[1]
        there = np.isfinite(numbers) & (True if problem in (None, REGRESSION) else numbers < width)
        if both.num_rows:
            step = np.searchsorted(times, both["captured_at"].to_numpy(), "right")
            requests = _numbers(both) * (len(times) + 1) + step
            rows = LabelledAnswers(predictions, numbers, problem, int((~there).sum()), requests, step)
            results[output] = rows.only(there)
    return results


def _is_plain_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_boolean(kind) or pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_numeric(kind: pa.DataType) -> bool:
    import pyarrow as pa

    while pa.types.is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
