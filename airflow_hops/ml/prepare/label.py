"""Derives the problem and classes of a label, and the numbers of the classes."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.target import BINARY, MAX_CLASSES, MULTICLASS, REGRESSION, Problem, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.prepare.options import TRAIN, PrepareOptions
from airflow_hops.ml.prepare.columns import EXACT
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import File

log = logging.getLogger(__name__)

_GUESSED_CLASSES = 100
"""Maximum distinct strings that are taken for classes without ``problem``."""
_NAMED = 10
_BATCH_ROWS = 1 << 17
_WIDEN = ": widen the window, or look at how prepare() derives it"

Files = Mapping[str, Sequence[File]]


def most_frequent(rows: Mapping[Any, int]) -> str:
    """Returns the most frequent values of a label in words, from rows by value."""
    most = sorted(rows.items(), key=lambda item: (-item[1], item[0]))
    more = f" and {len(most) - _NAMED} more" if len(most) > _NAMED else ""
    return ", ".join(f"{value!r} in {number} rows" for value, number in most[:_NAMED]) + more


def find_target(files: Files, given: PrepareOptions) -> Target:
    """Returns the target of a model: the stated one, or one derived from the label's values.

    Args:
        files: Parquet files by split, whose label is a string, an integer or a double, and never missing.
        given: The label, and options about it.

    Raises:
        BadInput: the values are ambiguous or contradict the options; or the split ``train`` has only one class, or
            lacks a class of another split.
    """
    if given.problem == REGRESSION:
        return _regression(files, given, "as told")
    by_split, fraction = read_values(files, given.label)
    if fraction is not None:
        if given.problem is None:
            return _regression(files, given, f"because values are not whole numbers ({fraction!r})")
        raise BadInput(
            f"label {given.label!r} has values that are not whole numbers, such as {fraction!r}, but problem is "
            f"{given.problem!r}; expected strings, integers or booleans, or problem={REGRESSION!r}"
        )
    target = given.named or _classes_found(by_split, given)
    # A class must be trained on to be evaluated; one that is not evaluated is only logged
    trained = by_split[TRAIN]
    if len(trained) == 1:
        (value, rows), *_ = trained.items()
        raise BadInput(f"{_constant(target.label, value, rows)}; expected two classes or more{_WIDEN}")
    for split, counts in by_split.items():
        if new := {value: rows for value, rows in counts.items() if value not in trained}:
            raise BadInput(
                f"label {target.label!r}: split {TRAIN!r} has no row of {_few(new)}, which split {split!r} has in "
                f"{sum(new.values())} rows; widen the window, or name the classes that are to be learnt with "
                "classes=[…], so that rows of others are rejected"
            )
        if lost := [value for value in trained if value not in counts]:
            log.warning("label %r: split %r has no row of %s", target.label, split, _few(lost))
    for group in alike(target.classes or ()):
        log.warning(
            "label %r: the classes %s differ only in case or blanks; if they are one, make them equal in prepare()",
            target.label,
            ", ".join(map(repr, group)),
        )
    if unseen := [name for name in target.classes or () if name not in set(map(str, trained))]:
        log.warning("label %r: no row has the class %s, so the model cannot learn it", target.label, _few(unseen))
    names = "0 and 1" if target.classes is None else ", ".join(map(repr, target.classes))
    report = "as told" if given.classes is not None else "as found in the rows, sorted"
    positive = "" if target.problem != BINARY else f"; positive is {target.class_name(1)}"
    log.info("label %r: problem %s, classes %s (%s)%s", given.label, target.problem, names, report, positive)
    return target


def read_values(files: Files, label: str) -> tuple[dict[str, Counter[Any]], float | None]:
    """Counts the values of the label, strings or integers, by split; stops at too many.

    It also stops at a value that is not a whole number, which it returns, too.
    """
    by_split: dict[str, Counter[Any]] = {split: Counter() for split in files}
    for split, file in ((split, file) for split, those in files.items() for file in those):
        counts = by_split[split]
        for batch in scan.batches(file, [label], rows=_BATCH_ROWS):
            column = batch.column(0)
            if pa.types.is_floating(column.type):
                whole = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), EXACT))
                fractions = column.filter(pc.invert(whole))
                if len(fractions):
                    return by_split, fractions[0].as_py()
                column = column.cast(pa.int64())
            for item in column.value_counts().to_pylist():
                counts[item["values"]] += item["counts"]
            if len(counts) > MAX_CLASSES:
                return by_split, None
    return by_split, None


def alike(names: Iterable[str]) -> list[list[str]]:
    """Returns the groups of names that differ only in case or blanks."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault("".join(name.split()).casefold(), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def numbers(column: pa.Array, target: Target) -> pa.Array:
    """Converts a label column of strings, integers or doubles to that of examples.

    Returns:
        float64 for a regression, else the class numbers, int64.

    Raises:
        BadInput: a double cannot represent an integer exactly.
    """
    if target.problem == REGRESSION:
        try:
            return column.cast(pa.float64())
        except pa.ArrowInvalid as error:
            raise BadInput(
                f"label {target.label!r} has an integer that no double holds ({error}); cast it to double, or scale "
                "it, in prepare()"
            ) from None
    if not pa.types.is_string(column.type):
        column = column.cast(pa.int64())
        if target.classes is None:
            return column
        column = column.cast(pa.string())
    return pc.index_in(column, value_set=pa.array(target.classes, pa.string())).cast(pa.int64())


def _regression(files: Files, values: PrepareOptions, why: str) -> Target:
    rows, low, high = 0, math.inf, -math.inf
    for batch in (batch for file in files[TRAIN] for batch in scan.batches(file, [values.label], rows=_BATCH_ROWS)):
        ends = pc.min_max(batch.column(0)).as_py()
        rows, low, high = rows + batch.num_rows, min(low, ends["min"]), max(high, ends["max"])
    if low == high:
        raise BadInput(f"{_constant(values.label, low, rows)}; expected numbers that differ{_WIDEN}")
    log.info("label %r: problem %s (%s), %g to %g in split %r", values.label, REGRESSION, why, low, high, TRAIN)
    return Target(values.label, REGRESSION, None, values.weight)


def _classes_found(by_split: Mapping[str, Counter[Any]], arguments: PrepareOptions) -> Target:
    """Returns a target with the sorted values as classes, and the stated or guessed problem."""
    values: Counter[Any] = sum(by_split.values(), Counter())
    result = sorted(values)
    if len(result) == 1:
        rows = by_split[TRAIN].total()
        raise BadInput(f"{_constant(arguments.label, result[0], rows)}; expected two classes or more{_WIDEN}")
    if len(result) > MAX_CLASSES:
        raise BadInput(
            f"label {arguments.label!r} has more than {MAX_CLASSES} values, such as "
            f"{', '.join(map(repr, result[:3]))}; expected classes, at most {MAX_CLASSES}: derive some in prepare(), "
            f"or, for numbers, set problem={REGRESSION!r}"
        )
    if arguments.problem != MULTICLASS and result == [0, 1]:
        return Target(arguments.label, BINARY, None, arguments.weight)
    problem = arguments.problem or _guessed(values, arguments.label)
    if problem == BINARY and len(result) != 2:
        raise BadInput(
            f"label {arguments.label!r} has {len(result)} values ({most_frequent(values)}), but problem is {BINARY!r}; "
            f"expected 2: derive them in prepare(), give the other rows a reject_reason, or set problem={MULTICLASS!r}"
        )
    return Target(arguments.label, problem, tuple(map(str, result)), arguments.weight)


def _guessed(values: Mapping[Any, int], label: str) -> Problem:
    shown = most_frequent(values)
    if not isinstance(next(iter(values)), str):
        raise BadInput(
            f"label {label!r} has {len(values)} whole numbers ({shown}), which may be classes or amounts; set "
            f"problem={MULTICLASS!r}, {REGRESSION!r} or, for two values, {BINARY!r}"
        )
    if len(values) > _GUESSED_CLASSES:
        raise BadInput(
            f"label {label!r} has {len(values)} different strings ({shown}), which may not be classes; if they are, "
            f"set problem={MULTICLASS!r}"
        )
    return BINARY if len(values) == 2 else MULTICLASS


def _constant(label: str, value: object, rows: int) -> str:
    return f"label {label!r} is {value!r} in all {rows} rows of split {TRAIN!r}"


def _few(values: Any) -> str:
    named = sorted(values)
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return ", ".join(map(repr, named[:_NAMED])) + more
