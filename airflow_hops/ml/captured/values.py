"""Converts captured outputs and labels to numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_TRUTH = {"true": 1.0, "false": 0.0}


def as_number(label: Any) -> float:
    """Returns a label as a number, also if it is text ("1", "true"); NaN if it is not a finite number."""
    try:
        value = float(_TRUTH.get(label.strip().lower(), label) if isinstance(label, str) else label)
    except (TypeError, ValueError):
        return math.nan
    return value if math.isfinite(value) else math.nan


def class_numbers(labels: Sequence[object], classes: Sequence[str] | None, known: Collection[str] | None) -> np.ndarray:
    """Returns the numbers of classes, from names or numbers; NaN if a label is not a known class."""
    numbers = {name: number for number, name in enumerate(classes or ())}
    # A boolean is the class of its name, in any case.
    truths = {name.lower(): number for name, number in numbers.items() if name.lower() in _TRUTH}
    # If class names are numbers, other numbers are not classes.
    indexed = not any(name.removeprefix("-").isdecimal() for name in numbers)

    def number(label: object) -> float:
        # Names come first, since a name may be a number.
        result = numbers.get(str(label), truths.get(str(label).strip().lower()))
        if result is None and (value := as_number(label)).is_integer():
            is_number = indexed and value >= 0 and (classes is None or value < len(classes))
            result = numbers.get(str(int(value)), int(value) if is_number else None)
        if result is None or (known is not None and classes is not None and classes[result] not in known):
            return np.nan
        return float(result)

    return np.array([number(label) for label in labels], np.float64)


def dense_values(column: Any, *, wide: bool) -> np.ndarray:
    """Returns a column's values, flat; lists of one length as ``[rows, width]`` if ``wide``."""
    rows = len(column)
    wide = wide and pa.types.is_list(column.type) and len(pc.unique(pc.list_value_length(column))) == 1
    while pa.types.is_list(column.type):
        column = pc.list_flatten(column)
    values: np.ndarray = column.to_numpy().astype(float)
    return values.reshape(rows, -1) if wide else values
