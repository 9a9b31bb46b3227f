"""Probe rows: held-out rows with one value changed to one that requests may hold, but held-out rows may lack."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.models.samples import Sample

Array = np.ndarray
Answer = Mapping[str, Array] | str
"""A model's outputs by name for the rows of a change; or the message with which it refuses them."""

_BATCH_ROWS = 2048
_ROWS = 8
_ASKED_ALONE = 100
"""Changes that are first tried one by one; a model that refuses them all is assumed to refuse the others, too."""
MISSING, INFINITE = "missing", "infinite"


@dataclass(frozen=True)
class ProbeBatch:
    """Rows of all changes of one kind, such as ``missing`` or ``infinite``; each change has as many rows.

    Attributes:
        columns: Number of the column of each change; None for every column.
    """

    kind: str
    columns: Sequence[int | None]
    sample: Sample

    def ask(self, answers: Callable[[Sample], Mapping[str, Array]]) -> list[Answer]:
        """Returns a model's answer to each change; ``answers`` asks the model, and raises if it refuses a row."""
        rows, count = len(self.sample.labels) // len(self.columns), len(self.columns)
        try:
            result = answers(self.sample)
            starts = range(0, rows * count, rows)
            return [{name: values[start : start + rows] for name, values in result.items()} for start in starts]
        except Exception as error:  # a model may refuse in any way
            if count == 1:
                cause = error.__cause__ if isinstance(error, BadInput) and error.__cause__ else error
                return [str(cause) or type(cause).__name__]

        def ask_alone(number: int) -> Answer:
            alone = self.sample.between(number * rows, (number + 1) * rows)
            return ProbeBatch(self.kind, [self.columns[number]], alone).ask(answers)[0]

        some = np.unique(np.linspace(0, count - 1, min(count, _ASKED_ALONE)).astype(int)).tolist()
        alone = {number: ask_alone(number) for number in some}
        if len(some) < count and all(isinstance(answer, str) for answer in alone.values()):
            return [alone.get(number, alone[0]) for number in range(count)]
        return [alone[number] if number in alone else ask_alone(number) for number in range(count)]


def probe_batches(sample: Sample) -> Iterator[ProbeBatch]:
    """Yields the probe rows of a sample.

    Each column in turn is missing, infinite, zero, outside the sample's range and far outside it; strings are empty,
    unknown, or in another case. Then all columns are missing, and zero.
    """
    columns = sample.rounded().columns()
    count = max(1, min(_ROWS, len(sample.labels), _BATCH_ROWS // len(columns)))
    rows = np.unique(np.linspace(0, len(sample.labels) - 1, count).astype(int))
    base = [column[rows] for column in columns]
    labels = [sample.labels[row] for row in rows]
    by_kind: dict[str, list[tuple[int | None, str, dict[int, Array]]]] = {}
    for number, column in enumerate(columns):
        for kind, text, values in _changes(column, base[number]):
            by_kind.setdefault(kind, []).append((number, f"{sample.column_name(number)} {text}", {number: values}))
    for kind in (MISSING, "zero"):
        every = {number: values for _, _, changed in by_kind.get(kind, ()) for number, values in changed.items()}
        if len(every) > 1:
            by_kind[f"all {kind}"] = [(None, f"{len(every)} columns {kind}", every)]
    for kind, changes in by_kind.items():
        parts = [np.tile(column, len(changes)) for column in base]
        for place, (_, _, changed) in enumerate(changes):
            for number, values in changed.items():
                parts[number][place * len(rows) : (place + 1) * len(rows)] = values
        names = [f"row {label} with {text}" for _, text, _ in changes for label in labels]
        yield ProbeBatch(kind, [column for column, _, _ in changes], sample.with_columns(parts, names))


def _changes(column: Array, base: Array) -> Iterator[tuple[str, str, Any]]:
    """Yields the changes of a column: kind, words, and the new values of its rows."""
    if column.dtype.kind == "O":
        texts = [_text(value) for value in base.tolist()]
        yield MISSING, "empty", ""
        for text, change in _TEXTS.items():
            yield f"text {text}", text, np.array([change(value) for value in texts], object)
        return
    finite = column[np.isfinite(column)]
    if column.dtype.kind not in "fi" or not len(finite):
        return
    low, high = finite.min().item(), finite.max().item()
    span = (high - low) or 1
    if column.dtype.kind == "f":
        yield MISSING, "missing", np.nan
        yield INFINITE, "infinite", np.where(np.arange(len(base)) % 2, -np.inf, np.inf)
        yield "between", "between two of its values", base + np.asarray(span / 3, column.dtype)
    yield "zero", "0", 0
    yield "minus one", "-1", -1
    for name, far in (("beyond", 1), ("far beyond", 10)):
        for value in (low - far * span, high + far * span):
            if column.dtype.kind == "f" or np.iinfo(column.dtype).min <= value <= np.iinfo(column.dtype).max:
                yield f"{name} {value > high}", f"{value:.6g}", value


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""


_TEXTS: Mapping[str, Callable[[str], str]] = {
    "never seen": lambda text: "never seen before",
    "in capitals": str.upper,
    "in words with an accent": lambda text: re.sub(r"(\w+)", "\\1é", text) or "é",
    "in words that begin with an umlaut": lambda text: re.sub(r"(\w+)", "Ü\\1", text) or "Ü",
    "in words of one letter": lambda text: " ".join(text),
    "in Japanese": lambda text: f"日本語 {text} 𝒳",
    "in lines": lambda text: f"\t{text}\n{text}\u00a0{text}  ",
    "between signs": lambda text: f"«{text}», ({text})!? {text}_{text}-{text}'s",
}
