"""Describes the columns of a file for ``airflow hops init``, and the role of each in a pipeline."""

from __future__ import annotations

import importlib.util
import math
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.target import BINARY, MULTICLASS, REGRESSION, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.core.prepare.options import TRAIN, PrepareOptions
from airflow_hops.core.processes.remote_files import open_url
from airflow_hops.core.sources.source_files import list_files
from airflow_hops.core.sources.sources import Source
from airflow_hops.extensions.projects.core.table_columns import ColumnDescription, Role, TableDescription
from airflow_hops.extensions.projects.ml.csv_dialect import (
    find_delimiter,
    missing_markers,
    missing_texts,
    notes_on_text,
    with_notation,
)
from airflow_hops.extensions.projects.ml.notes import notes_on_classes, notes_on_values
from airflow_hops.extensions.projects.ml.options import (
    FEW_ROWS,
    MOST_WITHOUT_KEY,
    NAME_OF_A_KEY,
    Told,
    is_plain,
    is_time,
    named,
)
from airflow_hops.extensions.projects.ml.proposals import propose_minimum, propose_newest_s, with_rare_class_last
from airflow_hops.ml.metrics.leakage import SUSPICIOUS, TELLS, repeats_label, score_alone
from airflow_hops.ml.prepare.label import find_target
from airflow_hops.ml.readers import first_types, infer_types, read
from airflow_hops.ml.readers.csv_quotes import UncertainQuotes
from airflow_hops.ml.readers.raw_file import RawFile, identify
from airflow_hops.ml.readers.text_types import TEXT
from airflow_hops.ml.readers.types import Types, unify
from airflow_hops.ml.step.context import StepContext

_MOST_ROWS = 1_000_000


def describe(
    context: StepContext,
    *,
    uri: str,
    encoding: str = "utf8",
    decimal: str | None = None,
    thousands: str | None = None,
    unit: Sequence[str] = (),
    quote: str | None = None,
    escape: str | None = None,
    package: str | None = None,
    **told: Any,
) -> dict[str, object]:
    """Describes a table as JSON, for ``airflow hops init``.

    Args:
        context: The step's context.
        uri: The file: a path, or a URI that fsspec opens.
        encoding: Encoding of CSV.
        decimal: Decimal mark of CSV; None to detect it.
        thousands: Thousands separator of CSV; None to detect it.
        unit: Units beside the numbers of CSV.
        quote: Quote of CSV; None to detect it.
        escape: Escape of CSV; None to detect it.
        package: Name of the Python package to create, if any.
        **told: Fields of :class:`Told`.

    Raises:
        BadInput: the file cannot be read, the options contradict it, or the package is installed already.
    """
    if package is not None and importlib.util.find_spec(package) is not None:
        raise BadInput(f"name {package!r} is the name of a module in the runtime environment; choose another one")
    source = Source(
        uri,
        encoding=encoding,
        quote=quote,
        escape=escape,
        decimal=decimal or ".",
        thousands=thousands or "",
        units=tuple(unit),
    )
    return describe_table(source, Told(**told)).to_dict()


def describe_table(source: Source, told: Told) -> TableDescription:
    """Describes the columns of a table and assigns a role to each.

    Raises:
        BadInput: the table cannot be read, or the options contradict it.
    """
    fs, listed = list_files(source)
    if [file.path for file in listed] != [open_url(source.uri)[1]]:
        names = named([file.name for file in listed])
        raise BadInput(
            f"{source.uri}: it is a folder, or a pattern of names; expected one file, such as one of {names}"
        )
    file = identify(fs, listed[0], source)
    if file.format not in ("csv", "parquet"):
        raise BadInput(f"{file.name}: the file is neither CSV nor Parquet; write it as one of these")
    notes: list[str] = []
    file = replace(file, source=replace(source, schema=told.schema))
    if file.format == "csv":
        file = replace(file, source=replace(file.source, delimiter=find_delimiter(file)))
        file = replace(file, source=replace(file.source, null_values=(*source.null_values, *told.missing)))
        file, texts, notes = _read_texts(file)
        told.check(texts.column_names, source.uri)
        if markers := missing_markers(texts, file.source, told.label, told.drop):
            notes += [f"{text!r} counts as missing, as among the numbers of {name!r}" for text, name in markers.items()]
            file = replace(file, source=replace(file.source, null_values=(*file.source.null_values, *markers)))
            file, texts, _ = _read_texts(file)
        noted, more = with_notation(texts, file.source, told.drop)
        notes += more
        file = replace(file, source=noted)
    table, whole = _read(file, _types(file, told.label))
    told.check(table.column_names, source.uri)
    if file.format == "csv":
        more, missing = missing_texts(table, file.source, told.label, told.drop)
        notes += missing
        if more:
            file = replace(file, source=replace(file.source, null_values=(*file.source.null_values, *more)))
            table, whole = _read(file, _types(file, told.label))
    else:
        if told.missing:
            raise BadInput(f"{source.uri}: --missing is for CSV files; replace {told.missing[0]!r} in prepare()")
        notes = notes_on_text(table, file.source, told.drop)
    _check_values(table, told, source.uri)
    label, target = _label(table.column(told.label), told, source.uri)
    columns = _columns(table, told, target, file.source.schema)
    features = [column for column in columns if column.role in ("number", "category")]
    if not features:
        unused = ", ".join(f"{column.name!r} ({column.why})" for column in columns if column.role == "unused")
        raise BadInput(f"{source.uri}: no column is left to predict {told.label!r} from; left out are {unused or '-'}")
    counts = None if target.problem == REGRESSION else Counter(label.to_pylist())
    target = with_rare_class_last(target, counts)
    times = next((table.column(column.name) for column in columns if column.role == "time"), None)
    newest_s = propose_newest_s(times, table.column(told.label), bool(counts)) if times is not None else None
    return TableDescription(
        rows=table.num_rows,
        whole=whole,
        columns=columns,
        problem=target.problem,
        classes=target.classes,
        minimum=propose_minimum(counts, target.classes[-1] if target.classes else None),
        request=_request(table, features),
        format=file.format,
        delimiter=file.source.delimiter,
        null_values=file.source.null_values,
        decimal=file.source.decimal,
        thousands=file.source.thousands,
        quote=file.source.quote,
        escape=file.source.escape,
        units=file.source.units,
        notes=(
            *notes,
            *notes_on_classes(table.num_rows, counts, told.label),
            *notes_on_values(table, columns),
        ),
        newest_s=newest_s,
        positive=_positive(target, table.schema.field(told.label).type),
    )


def _positive(target: Target, kind: pa.DataType) -> str | None:
    """Returns the class whose probability a model of two classes gives."""
    if target.problem != BINARY:
        return None
    return target.classes[1] if target.classes else "true" if pa.types.is_boolean(kind) else "1"


def _types(file: RawFile, label: str) -> Types:
    """Returns types that fit all rows of a table."""
    types = unify({file.name: infer_types(file)}, are_texts=file.is_text)
    if file.format != "csv":
        return types
    # Categories keep their spelling: TRUE is not True.
    return {n: TEXT if pa.types.is_boolean(t) and n != label else t for n, t in types.items()}


def _read_texts(file: RawFile) -> tuple[RawFile, pa.Table, list[str]]:
    """Returns a CSV file with the only quotes and escapes that can read it, its columns as text, and notes."""
    try:
        return file, _read(file, dict.fromkeys(first_types(file), TEXT))[0], []
    except UncertainQuotes as error:
        readings = []
        for name, value in error.settings:
            setting: dict[str, Any] = {name: value}
            other = replace(file, source=replace(file.source, **setting))
            with suppress(BadInput):
                texts, _ = _read(other, dict.fromkeys(first_types(other), TEXT))
                readings.append((other, texts, [f"read with {name}={value!r}, as its quotes cannot be read otherwise"]))
        if len(readings) != 1:
            raise UncertainQuotes(error.fault, error.settings, as_flags=True) from None
        return readings[0]


def _read(file: RawFile, types: Types) -> tuple[pa.Table, bool]:
    """Returns the first rows of a table, with NaN as null, and whether these are all rows."""
    batches, rows, whole = [], 0, True
    for batch, _ in read(file, types):
        if rows == _MOST_ROWS:
            whole = False
            break
        batches.append(batch.slice(0, _MOST_ROWS - rows))
        whole = batches[-1].num_rows == batch.num_rows
        rows += batches[-1].num_rows
        if not whole:
            break
    if not rows:
        raise BadInput(f"{file.source.uri}: the file has no rows; expected a header and rows below it")
    table = pa.Table.from_batches(batches)
    for number, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if pa.types.is_floating(column.type):
            is_number = pc.invert(pc.is_nan(column))
            table = table.set_column(number, name, pc.if_else(is_number, column, pa.scalar(None, column.type)))
    return table, whole


def _check_values(table: pa.Table, report: Told, where: str) -> None:
    """Raises BadInput if ``prepare`` would refuse the values of columns named by options."""
    if report.time is not None:
        kind = table.schema.field(report.time).type
        if not (is_time(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise BadInput(
                f"{where}: --time is {report.time!r}, a column of {_type(kind)}; expected times as in ISO 8601, such "
                f"as 2026-01-31 12:00:00, or seconds since 1970, or their layout: --type {report.time}=%d/%m/%Y"
            )
    if report.weight is not None:
        column = table.column(report.weight)
        if _type(column.type) not in ("integer", "float"):
            raise BadInput(
                f"{where}: --weight is {report.weight!r}, a column of {_type(column.type)}; expected numbers"
            )
        lowest = pc.min(column).as_py()
        if lowest is None or lowest <= 0:
            result = "has no value" if lowest is None else f"goes down to {lowest}"
            raise BadInput(f"{where}: --weight is {report.weight!r}, which {result}; expected numbers above 0")
    if report.key is not None:
        column = table.column(report.key)
        missing, different = column.null_count, len(pc.unique(column.drop_null()))
        if len(column) - different > MOST_WITHOUT_KEY * len(column):
            raise BadInput(
                f"{where}: --key is {report.key!r}, which is missing in {missing} of {len(column)} rows and has "
                f"{different} different values; expected a unique value in each row, since one row per key is kept"
            )


def _label(column: pa.ChunkedArray, report: Told, where: str) -> tuple[pa.Array, Target]:
    """Returns the label's values that are not missing, converted as by ``prepare``, and the target."""
    values = column.combine_chunks().drop_null()
    kind = values.type
    if pa.types.is_string(kind):
        values = values.filter(pc.not_equal(values, ""))
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.string() if report.problem == MULTICLASS else pa.int64())
    elif pa.types.is_integer(kind):
        values = values.cast(pa.int64())
    elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values = values.cast(pa.float64(), safe=False)
        values = values.filter(pc.is_finite(values))
    else:
        raise BadInput(f"{where}: --label is {report.label!r}, a column of {_type(kind)}; expected text or numbers")
    if report.problem == REGRESSION and not pa.types.is_string(kind):
        values = values.cast(pa.float64(), safe=False)
    different = pc.unique(values)
    if len(different) < 2:
        what = f"is {different[0].as_py()!r} in every row" if len(different) else "has no value"
        raise BadInput(f"{where}: --label is {report.label!r}, which {what}; expected values that differ")
    if report.problem == REGRESSION and pa.types.is_string(kind):
        raise BadInput(f"{where}: --problem is 'regression', but {report.label!r} holds text; expected numbers")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "label.parquet"
        write_parquet(pa.table({report.label: values}), file)
        try:
            return values, find_target({TRAIN: [file]}, PrepareOptions("", report.label, problem=report.problem))
        except BadInput as error:
            raise BadInput(f"{where}: {str(error).replace('problem=', '--problem ')}") from None


def _columns(table: pa.Table, report: Told, target: Target, arguments: Mapping[str, str]) -> list[ColumnDescription]:
    results: list[ColumnDescription] = []
    spelt = {name.lower(): name for name in (report.label, report.key, report.time, report.weight) if name is not None}
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.drop_null()
        role, why = report.role(name), "as told"
        if role is None:
            taken = {each.role for each in results} | {each for each in ("key", "time") if getattr(report, each)}
            role, why = _role(name, column, report, taken)
            if (other := spelt.get(name.lower(), name)) != name:
                role, why = "unused", f"its name differs from {other!r} only in case; --drop leaves that one out"
            if role in ("number", "category") and name not in report.keep:
                role, why = _unless_it_tells_the_label(column, table.column(report.label), target, role, why)
            if role == "unused" and name in report.keep:
                raise BadInput(f"--keep is {name!r}, which cannot be a feature: {why}")
            if role != "unused":
                spelt[name.lower()] = name
        example = "" if not len(values) else str(values[0].as_py())
        layout = arguments.get(name, "") if is_time(column.type) else ""
        results.append(ColumnDescription(name, _type(column.type), column.null_count, example, role, why, layout))
    return results


def _role(name: str, column: pa.ChunkedArray, report: Told, taken: set[Any]) -> tuple[Role, str]:
    """Returns the role of a column by its values, and the reason."""
    rows, kind = len(column), column.type
    if not name or "\0" in name:
        return "unused", "it has no name that a column can have"
    if name in report.drop:
        return "unused", "dropped, as told"
    if column.null_count == rows:
        return "unused", "it has no value"
    if not is_plain(kind):
        return "unused", f"{_type(kind)} is not a feature; prepare() can derive features from it"
    distinct = len(pc.unique(column.drop_null()))
    if distinct == 1 and not column.null_count:
        return "unused", "it is the same in every row"
    if is_time(kind):
        if "time" in taken or column.null_count:
            return "unused", "a time is not a feature; prepare() can derive features from it"
        return "time", "the first column of times"
    if distinct == rows and (pa.types.is_string(kind) or pa.types.is_integer(kind)):
        if NAME_OF_A_KEY.search(name):
            return ("unused", "it identifies a row") if "key" in taken else ("key", "its name, and no value twice")
        if pa.types.is_string(kind):
            return "unused", "every value differs: nothing can be learnt from it"
        if pc.max(column).as_py() - pc.min(column).as_py() == rows - 1 and rows >= FEW_ROWS:
            return "unused", "it numbers the rows"
    is_key = NAME_OF_A_KEY.search(name) and (pa.types.is_string(kind) or pa.types.is_integer(kind))
    if is_key and name not in report.keep and distinct >= (1 - MOST_WITHOUT_KEY) * rows and rows >= FEW_ROWS:
        return "unused", f"it identifies a row, but {rows - distinct} rows repeat a value or have none"
    if pa.types.is_string(kind) and distinct > max(20, rows / 2):
        return "unused", f"text: {distinct} different values"
    if pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return "category", f"{distinct} values"
    return "number", ""


def _unless_it_tells_the_label(
    column: pa.ChunkedArray, label: pa.ChunkedArray, target: Target, role: Role, why: str
) -> tuple[Role, str]:
    """Excludes a column that repeats the label, since it is unknown at prediction time."""
    is_regression = target.problem == REGRESSION
    if repeats_label(column, label, target.problem):
        words = "on another scale" if is_regression else "in other words: each value goes with one of its"
        return "unused", f"it is {target.label!r} {words}"
    score = score_alone(column, label, target.problem)
    if score is None or score < SUSPICIOUS:
        return role, why
    alone = f"alone it tells {target.label!r} ({'R² of ranks' if is_regression else 'AUC'} {score:.4f})"
    if score < TELLS:
        return role, f"{alone}: is it known at prediction time?"
    return "unused", f"{alone}, as what is known only afterwards does; --keep keeps it"


def _type(kind: pa.DataType) -> str:
    names = {
        "text": pa.types.is_string,
        "integer": pa.types.is_integer,
        "boolean": pa.types.is_boolean,
        "time": is_time,
    }
    is_float = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return "float" if is_float else next((name for name, is_of in names.items() if is_of(kind)), str(kind))


def _request(table: pa.Table, features: Sequence[ColumnDescription]) -> dict[str, object]:
    """Returns the features of the first row with the fewest missing values."""
    head = table.select([column.name for column in features]).slice(0, 1000).to_pylist()
    row = min(head, key=lambda row: sum(value is None or value != value for value in row.values()))
    return {column.name: _sent(row[column.name], column.role) for column in features}


def _sent(value: Any, role: Role) -> object:
    if role == "category":
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else 0.0
