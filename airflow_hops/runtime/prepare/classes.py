"""The class of each row that ``prepare`` returned: a split, or a reason why it is in none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.contract.splits import EVAL, NEWEST, TRAIN
from airflow_hops.data.raw_features import check_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REASON_COLUMN = "reject_reason"
DUPLICATE_KEY = "duplicate key"
CLASS_COLUMN = "__class__"
REJECTED = "rejected:"
UNSUPPORTED_LABEL = "unsupported label"
LABEL_TEXT_COLUMN = "__label__"


@dataclass(frozen=True)
class ExampleColumns:
    """The columns of examples that are no features.

    Attributes:
        label: 0 or 1.
        key: Identity of an example, which decides its side of the split; None where there is none: its features do.
        time: When the question was asked, or None.
    """

    label: str
    key: str | None = None
    time: str | None = None

    @property
    def leading(self) -> tuple[str, ...]:
        """The columns that there are, in their order in the files."""
        return tuple(name for name in (self.key, self.time, self.label) if name is not None)


@dataclass(frozen=True)
class Splits:
    """How examples are split.

    Attributes:
        eval_percent: Share of the keys that are never trained on.
        newest_from_s: Examples at or after this time (seconds since the epoch) are in the split ``newest``; None for
            no such split.
    """

    eval_percent: int
    newest_from_s: int | None = None


def classify(
    frame: DataFrame,
    columns: ExampleColumns,
    splits: Splits,
    *,
    reject: Mapping[str, str] | None = None,
) -> DataFrame:
    """Gives each row its final types and its class: a split, or a reason to be rejected.

    A row of a key that another row has too is rejected, but for the first one in the order of time.

    Args:
        frame: What ``prepare`` returned.
        columns: Label, key and time.
        splits: How to split.
        reject: SQL conditions by reason.

    Returns:
        Key, time, label, the features, and the class; a rejected row's class is ``rejected:`` and the reason. A label
        that is not supported is kept as text, in a column of its own.

    Raises:
        BadInput: a column is missing, or of a type that examples cannot have.
    """
    _check_columns(frame, columns)
    types = {item.name: item.dataType.typeName() for item in frame.schema}
    features = [name for name in frame.columns if name not in (*columns.leading, REASON_COLUMN)]
    key = quoted(columns.key).cast("string") if columns.key else None
    time = _time(columns.time, types[columns.time]) if columns.time else None
    label = quoted(columns.label)
    reasons = [quoted(REASON_COLUMN).cast("string")] if REASON_COLUMN in frame.columns else []
    reasons += [F.when(F.expr(condition), F.lit(reason)) for reason, condition in (reject or {}).items()]
    if key is not None:
        reasons.append(F.when(key.isNull() | (key == ""), F.lit(f"{columns.key} is missing")))
    if time is not None:
        reasons.append(F.when(time.isNull(), F.lit(f"{columns.time} is missing")))
    reasons.append(F.when(label.isNull() | F.isnan(label.cast("double")), F.lit(f"{columns.label} is missing")))
    leading = [column for column in (key, time, label.cast("bigint")) if column is not None]
    typed = frame.select(
        *(column.alias(name) for name, column in zip(columns.leading, leading, strict=True)),
        *(_feature(name, types[name]).alias(name) for name in features),
        F.coalesce(*reasons).alias(CLASS_COLUMN),
        F.when(~label.cast("double").isin(0.0, 1.0), label.cast("string")).alias(LABEL_TEXT_COLUMN),
    )
    # The hash of the key, or of the features, alone decides: a row stays on its side whatever the window.
    identity = F.xxhash64(*(quoted(name) for name in ([columns.key] if columns.key else features)))
    side = F.when(F.pmod(identity, F.lit(100)) < splits.eval_percent, EVAL).otherwise(TRAIN)
    if splits.newest_from_s is not None and columns.time:
        side = F.when(quoted(columns.time) >= splits.newest_from_s, NEWEST).otherwise(side)
    reason = F.col(CLASS_COLUMN)
    found = F.when(reason.isNotNull(), F.concat(F.lit(REJECTED), reason)).when(
        F.col(LABEL_TEXT_COLUMN).isNotNull(), UNSUPPORTED_LABEL
    )
    if columns.key is None:
        return typed.repartition(identity).withColumn(CLASS_COLUMN, found.otherwise(side))
    contents = F.xxhash64(*(quoted(name) for name in (*columns.leading, *features)))
    earliest = [quoted(columns.time)] if columns.time else []
    same_key = Window.partitionBy(quoted(columns.key)).orderBy(reason.isNotNull(), *earliest, contents)
    found = found.when(F.row_number().over(same_key) > 1, REJECTED + DUPLICATE_KEY)
    return typed.withColumn(CLASS_COLUMN, found.otherwise(side))


def quoted(name: str) -> Column:
    """A column of any name."""
    return F.col("`{}`".format(name.replace("`", "``")))


def _check_columns(frame: DataFrame, columns: ExampleColumns) -> None:
    names = frame.columns
    if own := {CLASS_COLUMN, LABEL_TEXT_COLUMN} & set(names):
        raise BadInput(f"prepare returned a column {min(own)!r}, which is a name of this stage's own; rename it")
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"prepare returned two columns {twice[0]!r}; rename or drop one of them after the join")
    check_names(names, "what prepare returned")
    for argument in ("label", "key", "time"):
        if (name := getattr(columns, argument)) is not None and name not in names:
            raise BadInput(f"{argument} is {name!r}, but prepare returned no such column; it has {', '.join(names)}")
    if not set(names) - {*columns.leading, REASON_COLUMN}:
        raise BadInput(f"prepare returned no features, only {', '.join(names)}")
    types = {item.name: item.dataType for item in frame.schema}
    numbers = {"byte", "short", "integer", "long", "float", "double", "decimal"}
    allowed = {
        columns.label: numbers | {"boolean"},
        REASON_COLUMN: {"string", "void"},
    }
    if columns.key:
        allowed[columns.key] = {"string", "byte", "short", "integer", "long"}
    if columns.time:
        allowed[columns.time] = numbers | {"timestamp", "timestamp_ntz", "date"}
    # Label, key and time come first: what the arguments confuse would else be called a feature of a wrong type.
    for name, type_ in sorted(types.items(), key=lambda item: item[0] not in allowed):
        found = type_.typeName()
        if found not in allowed.get(name, numbers | {"boolean", "string"}):
            raise BadInput(
                f"prepare's column {name!r} is of type {type_.simpleString()}; expected "
                f"{', '.join(sorted(allowed.get(name, {'an integer', 'float', 'double', 'boolean', 'string'})))}"
            )


def _time(name: str, type_: str) -> Column:
    column = quoted(name)
    if type_ in ("date", "timestamp_ntz"):
        column = column.cast("timestamp")
    return column.cast("bigint")


def _feature(name: str, type_: str) -> Column:
    column = quoted(name)
    if type_ in ("float", "double"):
        return F.when(~F.isnan(column), column)
    if type_ == "string":
        return column
    return column.cast("double" if type_ == "decimal" else "bigint")
