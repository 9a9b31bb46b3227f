"""Captured outputs and labels as numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def class_numbers(labels: Sequence[Any], classes: Sequence[str] | None, known: Collection[str] | None) -> np.ndarray:
    """The numbers of classes that are told by name or number; NaN for what is none, or does not count."""
    numbers = {name: number for number, name in enumerate(classes or ())}

    def number(label: Any) -> float:
        if isinstance(label, float) and label.is_integer():
            label = int(label)
        # A class that is called by a number is meant by it: names come first.
        found = numbers.get(str(label))
        if found is None and isinstance(label, int) and label >= 0 and (classes is None or label < len(classes)):
            found = int(label)
        if found is None or (known is not None and classes is not None and classes[found] not in known):
            return np.nan
        return float(found)

    return np.array([number(label) for label in labels], np.float64)


def dense_values(column: Any, *, wide: bool) -> np.ndarray:
    """A column's values, flat; where they are wanted wide, and are lists of one length, [rows, width]."""
    rows = len(column)
    wide = wide and pa.types.is_list(column.type) and len(pc.unique(pc.list_value_length(column))) == 1
    while pa.types.is_list(column.type):
        column = pc.list_flatten(column)
    values: np.ndarray = column.to_numpy().astype(float)
    return values.reshape(rows, -1) if wide else values
