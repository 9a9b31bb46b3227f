"""Reads captured answers of a version, and the labels that arrived later."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from airflow_hops.core.artifacts.target import BINARY, CLASS, MULTICLASS, OUTPUTS, REGRESSION
from airflow_hops.ml.captured.feedback import LABEL, join_feedback
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.captured.values import as_number, class_numbers, dense_values
from airflow_hops.ml.rollout.comparisons import LabelledAnswers

if TYPE_CHECKING:
    import pyarrow as pa

_CAPTURED_ROWS = 200_000
"""Maximum captured rows read per version, newest first."""

_MAX_CLASSES = 100
"""Maximum number of classes whose probabilities are compared individually."""

_PROBLEMS = {output: problem for problem, output in OUTPUTS.items()}


@dataclass(frozen=True)
class Captured:
    """Answers of one version.

    Attributes:
        outputs: Values of numeric outputs by name, flat; ``probabilities`` of up to 100 classes [rows, classes]. Only
            the predictions, if the model's signature identifies them.
        table: Captured rows, an Arrow table of ``request_id``, ``row`` and the numeric outputs; None if there are none.
    """

    outputs: dict[str, np.ndarray] = field(default_factory=dict)
    table: pa.Table | None = None

    def of_classes(self, mine: Sequence[str] | None, wanted: Sequence[str] | None) -> Captured:
        """Selects the probabilities of some classes, in their order; ``probability`` is that of the second class.

        Args:
            mine: The version's classes, in the order of its outputs; None if unknown.
            wanted: Some of these classes; None to change nothing.
        """
        if mine is None or wanted is None:
            return self
        if len(mine) == 2 and list(wanted) == [mine[1], mine[0]] and OUTPUTS[BINARY] in self.outputs:
            return replace(self, outputs={**self.outputs, OUTPUTS[BINARY]: 1 - self.outputs[OUTPUTS[BINARY]]})
        values = self.outputs.get(OUTPUTS[MULTICLASS])
        if values is None or values.ndim != 2 or values.shape[1] != len(mine):
            return self
        columns = values[:, [list(mine).index(name) for name in wanted]]
        return replace(self, outputs={**self.outputs, OUTPUTS[MULTICLASS]: columns})


def read_captured(requests: CapturedRequests, version: int, since: datetime) -> Captured:
    """Reads the numeric outputs of a version captured since a time with a zone."""
    import pyarrow as pa
    import pyarrow.compute as pc

    stamp = since.strftime("%Y%m%dT%H%M%S")
    tables = []
    rows = 0
    for name in reversed(requests.names(version)):
        if name[: len(stamp)] < stamp or rows >= _CAPTURED_ROWS:
            break
        schema = requests.footer(name).schema.to_arrow_schema()
        numeric = [c.name for c in schema if c.name.startswith("output.") and _is_numeric(c.type)]
        numeric = [column for column in numeric if column.removeprefix("output.") in _PROBLEMS] or numeric
        table = requests.table(name, ["request_id", "row", *numeric, "captured_at"])
        table = table.filter(pc.greater_equal(table["captured_at"], pa.scalar(since, pa.timestamp("us", "UTC"))))
        rows += table.num_rows
        tables.append(table)
    if not tables:
        return Captured()
    table = pa.concat_tables(tables, promote=True)
    outputs = {
        name.removeprefix("output."): dense_values(
            table[name].drop_null(), wide=name == f"output.{OUTPUTS[MULTICLASS]}"
        )
        for name in table.column_names
        if name.startswith("output.")
    }
    outputs = {name: v for name, v in outputs.items() if name in _PROBLEMS} or outputs
    outputs = {name: v.reshape(-1) if v.ndim == 2 and v.shape[1] > _MAX_CLASSES else v for name, v in outputs.items()}
    return Captured(outputs, table)


def read_labelled(
    captured: Captured,
    feedback: pa.Table,
    label: str | None = None,
    classes: Sequence[str] | None = None,
    known: Collection[str] | None = None,
    further: Collection[str] = (),
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

    Returns:
        Rows with a known label, by output.
    """
    import pyarrow as pa

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
    results = {}
    for output, name in pairs.items():
        both = pa.table({"prediction": joined[f"output.{output}"], "label": joined[LABEL + name]}).drop_null()
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
            results[output] = LabelledAnswers(predictions[there], numbers[there], problem, int((~there).sum()))
    return results


def _is_plain_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_boolean(kind) or pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_numeric(kind: pa.DataType) -> bool:
    import pyarrow as pa

    while pa.types.is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
