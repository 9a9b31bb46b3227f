"""Values of a log survive in the columns of each type, or are left out."""

from __future__ import annotations

import itertools
import math
import re
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest

from airflow_hops.extensions.captured_logs.ml.bodies import Cell
from airflow_hops.extensions.captured_logs.ml.columns import ColumnKinds, column_of

TYPES = [None, pa.int64(), pa.float64(), pa.float32(), pa.bool_(), pa.string()]
NUMBERS = [0, -0.0, 1, 7, 0.5, -3.25, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 1e300, 5e-324, 1e22]
TEXTS = ["", "yes", "true", "FALSE", " false", "1_000", "1_0.5", "1e3", "+5", "007", "12345678901234567890", "x", "NaN"]
TEXTS += [*map(str, NUMBERS), "0x10", "१२", "1,5", "Infinity"]
VALUES = [True, False, math.nan, math.inf, *NUMBERS, *TEXTS, *map(Cell, TEXTS)]
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)


def exact(value: Any) -> Fraction | None:
    """The number that a value is, in a program or a text; None if it is none."""
    if isinstance(value, str):
        return Fraction(int(value, 16)) if value == "0x10" else Fraction(value) if _NUMBER.fullmatch(value) else None
    return Fraction(value) if math.isfinite(value) else None


def is_kept(value: Any, result: Any, kind: pa.DataType, is_given: bool) -> bool:
    """Whether a column's value is the log's; of a text with a given type, as ingest of CSV rounds it."""
    if value == "" and not (pa.types.is_string(kind) and (is_given or not isinstance(value, Cell))):
        return result is None
    if pa.types.is_string(kind):
        return bool(result == str(value))
    if pa.types.is_boolean(kind):
        return result is {"true": True, "1": True, "false": False, "0": False}.get(str(value).strip().lower())
    number = exact(value)
    if number is None:
        return not math.isfinite(result) and str(float(value)) == str(result)
    is_single = pa.types.is_float32(kind)
    if number.denominator == 1 and abs(number) <= 2**63 and not is_single and not isinstance(value, str):
        return bool(Fraction(result) == number)
    return math.isfinite(result) and math.isclose(
        result, number, rel_tol=2**-23 if is_single else 2**-52, abs_tol=1e-44
    )


@pytest.mark.parametrize("given", TYPES, ids=str)
def test_values_survive_or_are_refused(given: pa.DataType | None) -> None:
    survivors = 0
    for values in itertools.chain(([each] for each in VALUES), itertools.product(VALUES, [0.5, Cell("0.5")])):
        kinds = ColumnKinds(given)
        kinds.add(values)
        kind = kinds.type()
        column, wrong = column_of(values, kind, is_given=given is not None)
        right = [
            (value, result)
            for row, (value, result) in enumerate(zip(values, column.to_pylist(), strict=True))
            if row not in wrong
        ]
        survivors += len(right)
        assert given is not None or 2 * len(right) >= len(values), (values, kind)
        assert all(is_kept(*each, kind, given is not None) for each in right), (values, kind, column)
    assert survivors > 10


def test_lists_without_values_are_lists() -> None:
    for value, depth in (([], 1), ([[]], 2), ([[], []], 2)):
        kinds = ColumnKinds()
        kinds.add([value, None])
        kind = kinds.type()
        assert column_of([value, None], kind, is_given=False)[0].to_pylist() == [value, None]
        assert str(kind).count("list") == depth


def test_texts_of_a_body_outnumber_the_numbers_of_another() -> None:
    kinds = ColumnKinds()
    kinds.add([Cell("red"), Cell("blue"), Cell("green")])
    kinds.add([Cell("1")])
    assert kinds.type() == pa.string()
