"""Classifies the rows returned by ``prepare``: a split, or a reason to reject."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import PythonException
from pyspark.sql import Window
from pyspark.sql import functions as F

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.prepare import EVAL, NEWEST, TRAIN, PrepareOptions
from airflow_hops.core.contract.target import REGRESSION
from airflow_hops.ml.features.raw_features import check_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The order of reasons is the order of coalesce(): the user's own first, then rules in the order of the options, then
# missing or unusable columns; a row is counted under its first reason. A duplicate key is decided after them, so that a
# rejected row never displaces a usable one with its key.
# The split depends only on the hash of the key (without a key, of the features): the same row is on the same side in
# each window, and equal rows are never on both sides.

REASON_COLUMN = "reject_reason"
DUPLICATE_KEY = "duplicate key"
CLASS_COLUMN = "__class__"
REJECTED = "rejected:"
NO_CLASS = "none of the classes"
_VECTOR = "array of "
_NUMBERS = frozenset({"byte", "short", "integer", "long", "float", "double", "decimal"})


@dataclass(frozen=True)
class Splits:
    """Rules to split examples.

    Attributes:
        eval_percent: Percentage of the keys that are never trained on.
        newest_from_s: Examples at or after this time (seconds since the epoch) are in the split ``newest``; None
            without that split.
    """

    eval_percent: int
    newest_from_s: int | None = None


def classify(frame: DataFrame, given: PrepareOptions, splits: Splits) -> DataFrame:
    """Gives each row its final types and its class: a split, or a reason to reject it.

    Of several rows with a key, all but the first in time are rejected.

    Returns:
        Key, time, label, weight, the features, and the class; a rejected row's class is ``rejected:`` and the reason. A
        label keeps its type: string, integer or double.

    Raises:
        BadInput: a column is missing, or of a type that examples cannot have.
    """
    leading = leading_columns(given)
    _check_columns(frame, given)
    types = {item.name: _type_name(item.dataType) for item in frame.schema}
    features = [name for name in frame.columns if name not in (*leading, REASON_COLUMN)]
    reasons = [quoted(REASON_COLUMN).cast("string")] if REASON_COLUMN in frame.columns else []
    reasons += [F.when(F.expr(condition), F.lit(reason)) for reason, condition in given.reject.items()]
    if given.key is not None:
        leading[given.key] = quoted(given.key).cast("string")
        reasons.append(_missing(given.key, leading[given.key] == ""))
    if given.time is not None:
        leading[given.time] = _time(given.time, types[given.time])
        reasons.append(_missing(given.time))
    for each in given.of_labels:
        leading[each.label] = _label(each, types[each.label])
        reasons += _label_reasons(each, types[each.label], leading[each.label])
    if given.weight is not None:
        leading[given.weight] = weight = quoted(given.weight).cast("double")
        unusable = (weight <= 0) | (weight == float("inf"))
        reasons.append(_missing(given.weight, F.isnan(weight)))
        reasons.append(F.when(unusable, F.lit(f"{given.weight} is not a number above 0")))
    for name, width in _widths(frame, [name for name in features if types[name].startswith(_VECTOR)]).items():
        reasons += _vector_reasons(name, width)
    typed = frame.select(
        *(column.alias(name) for name, column in leading.items()),
        *(_feature(name, types[name]).alias(name) for name in features),
        F.coalesce(*reasons).alias(CLASS_COLUMN),
    )
    # Depends only on the hash of the key, or of the features: a row has the same split in every window.
    identity = F.xxhash64(*(quoted(name) for name in ([given.key] if given.key else features)))
    side = F.when(F.pmod(identity, F.lit(100)) < splits.eval_percent, EVAL).otherwise(TRAIN)
    if splits.newest_from_s is not None and given.time:
        side = F.when(quoted(given.time) >= splits.newest_from_s, NEWEST).otherwise(side)
    reason = F.col(CLASS_COLUMN)
    result = F.when(reason.isNotNull(), F.concat(F.lit(REJECTED), reason))
    if given.key is None:
        return typed.repartition(identity).withColumn(CLASS_COLUMN, result.otherwise(side))
    contents = F.xxhash64(*(quoted(name) for name in (*leading, *features)))
    earliest = [quoted(given.time)] if given.time else []
    same_key = Window.partitionBy(quoted(given.key)).orderBy(reason.isNotNull(), *earliest, contents)
    result = result.when(F.row_number().over(same_key) > 1, REJECTED + DUPLICATE_KEY)
    return typed.withColumn(CLASS_COLUMN, result.otherwise(side))


def latest_time(frame: DataFrame, given: PrepareOptions) -> int | None:
    """Returns the latest time in the rows, in seconds since the epoch; None if no row has one."""
    assert given.time is not None
    _check_columns(frame, given)
    kind = _type_name(frame.schema[given.time].dataType)
    (latest,) = frame.select(F.max(_time(given.time, kind))).first()
    return None if latest is None else int(latest)


def leading_columns(given: PrepareOptions) -> dict[str, Column]:
    """Returns the columns that are not features, by name, in their order in the files."""
    names = (given.key, given.time, given.label, *given.more_labels, given.weight)
    return {name: quoted(name) for name in names if name is not None}


def quoted(name: str) -> Column:
    """Returns a column by a name of any characters."""
    return F.col("`{}`".format(name.replace("`", "``")))


def _check_columns(frame: DataFrame, values: PrepareOptions) -> None:
    names = frame.columns
    if CLASS_COLUMN in names:
        raise BadInput(f"prepare returned a column {CLASS_COLUMN!r}, a name that this stage reserves; rename it")
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"prepare returned two columns {twice[0]!r}; rename or drop one of them after the join")
    check_names(names, "what prepare returned")
    for argument in ("label", "key", "time", "weight"):
        if (name := getattr(values, argument)) is not None and name not in names:
            raise BadInput(f"{argument} is {name!r}, but prepare returned no such column; it has {', '.join(names)}")
    for name in values.more_labels:
        if name not in names:
            raise BadInput(
                f"more_labels names {name!r}, but prepare returned no such column; it has {', '.join(names)}"
            )
    if not set(names) - {*leading_columns(values), REASON_COLUMN}:
        raise BadInput(f"prepare returned no features, only {', '.join(names)}")
    types = {item.name: item.dataType for item in frame.schema}
    regressions = {each.label for each in values.of_labels if each.problem == REGRESSION}
    of_features = _NUMBERS | {"boolean", "string"} | {_VECTOR + number for number in _NUMBERS}
    allowed = {
        **{each.label: _NUMBERS | {"boolean", "string"} for each in values.of_labels},
        **dict.fromkeys(regressions, _NUMBERS),
        REASON_COLUMN: {"string", "void"},
    }
    if values.key:
        allowed[values.key] = {"string", "byte", "short", "integer", "long"}
    if values.time:
        allowed[values.time] = _NUMBERS | {"timestamp", "timestamp_ntz", "date"}
    if values.weight:
        allowed[values.weight] = _NUMBERS
    # These first: otherwise confused arguments would be reported as a feature of a wrong type.
    for name, type_ in sorted(types.items(), key=lambda item: item[0] not in allowed):
        if _type_name(type_) not in allowed.get(name, of_features):
            what = " of the label of a regression" if name in regressions else ""
            features = {"an integer", "float", "double", "boolean", "string", "an array of numbers"}
            raise BadInput(
                f"prepare's column {name!r}{what} is of type {type_.simpleString()}; expected "
                f"{', '.join(sorted(allowed.get(name, features)))}"
            )


def _missing(name: str, *others: Column) -> Column:
    """Returns the reason for rows whose column is null, or that meet another condition."""
    condition = quoted(name).isNull()
    for other in others:
        condition = condition | other
    return F.when(condition, F.lit(f"{name} is missing"))


def _label(values: PrepareOptions, type_: str) -> Column:
    column = quoted(values.label)
    if type_ == "string" or (type_ == "boolean" and values.as_text):
        return column.cast("string")
    return column.cast("double" if type_ in ("float", "double", "decimal") else "bigint")


def _label_reasons(values: PrepareOptions, type_: str, label: Column) -> list[Column]:
    """Returns the reasons to reject a row for its label."""
    if type_ in ("float", "double"):
        infinite = F.when(F.abs(label) == float("inf"), F.lit(f"{values.label} is infinite"))
        reasons = [_missing(values.label, F.isnan(label)), infinite]
    else:
        reasons = [_missing(values.label, *([label == ""] if type_ == "string" else []))]
    if values.classes is not None:
        text = label.cast("string")
        if type_ in ("float", "double", "decimal"):
            text = F.when(label == F.floor(label), label.cast("bigint").cast("string")).otherwise(text)
        reasons.append(F.when(~text.isin(*map(str, values.classes)), F.lit(f"{values.label} is {NO_CLASS}")))
    return reasons


def _time(name: str, type_: str) -> Column:
    column = quoted(name)
    if type_ in ("date", "timestamp_ntz"):
        column = column.cast("timestamp")
    return column.cast("bigint")


def _type_name(type_: Any) -> str:
    """Returns Spark's name of a type; for an array, :data:`_VECTOR` and the name of its elements' type."""
    name = str(type_.typeName())
    return _VECTOR + _type_name(type_.elementType) if name == "array" else name


def _widths(frame: DataFrame, vectors: list[str]) -> dict[str, int]:
    """Returns the median length of each vector feature, from a Spark job."""
    if not vectors:
        return {}
    lengths = [F.when(quoted(name).isNotNull(), F.size(quoted(name))) for name in vectors]
    with python_failures():
        result = frame.agg(*(F.percentile_approx(length, 0.5) for length in lengths)).first()
    widths = dict(zip(vectors, result or (), strict=True))
    for name, width in widths.items():
        if width is None or width < 2:
            what = "in no row" if width is None else f"of {width} numbers in most rows"
            raise BadInput(
                f"prepare's column {name!r} is a vector {what}; expected 2 numbers or more, or a number itself"
            )
    return widths


def _vector_reasons(name: str, width: int) -> list[Column]:
    """Returns the reasons to reject a row for a vector; a missing vector is valid, like any missing feature."""
    column = quoted(name)
    return [
        F.when(column.isNotNull() & (F.size(column) != width), F.lit(f"{name} has not {width} numbers")),
        F.when(
            F.exists(column, lambda x: x.isNull() | F.isnan(x) | (F.abs(x) == float("inf"))),
            F.lit(f"{name} has an entry that is missing, NaN or infinite"),
        ),
    ]


@contextmanager
def python_failures() -> Iterator[None]:
    """Converts exceptions of the user's Python functions in executors to BadInput."""
    try:
        yield
    except PythonException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        last = next((line for line in reversed(lines) if not line.startswith(("at ", "...", "JVM"))), "no message")
        raise BadInput(f"a Python function in prepare raised: {last}") from error


def _feature(name: str, type_: str) -> Column:
    column = quoted(name)
    if type_.startswith(_VECTOR):
        return column if type_ in (f"{_VECTOR}float", f"{_VECTOR}double") else column.cast("array<double>")
    if type_ in ("float", "double"):
        return F.when(~F.isnan(column), column)
    if type_ == "string":
        return column
    return column.cast("double" if type_ == "decimal" else "bigint")
