"""The files of a new project: a pipeline for one table, as a person would write it."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from string import Template
from typing import Any

from airflow_hops.core.artifacts.target import REGRESSION
from airflow_hops.extensions.projects.core.table_columns import ColumnDescription, Role, TableDescription

_WIDTH = 110
_TYPES: dict[Role, str] = {"number": "float64", "category": "string", "key": "string", "weight": "float64"}
_LABEL_TYPES = {"text": "string", "integer": "int64", "boolean": "bool", "float": "float64"}
_REJECTED_BY_DEFAULT = 0.1
_REGRESSION = {
    "linear": "Ridge",
    "linear_fixed": "",
    "strength": "alpha",
    "strengths": "[1e5, 1e4, 1e3, 100, 10, 1]",
    "split": "ShuffleSplit",
    "scoring": "neg_mean_squared_error",
    "loss": "squared error",
    "common": "        common = np.ones(len(rows), bool)\n",
}
_CLASSIFICATION = {
    "linear": "LogisticRegression",
    "linear_fixed": "max_iter=1000",
    "strength": "C",
    "strengths": "[1e-4, 1e-3, 0.01, 0.1, 1]",
    "split": "StratifiedShuffleSplit",
    "scoring": "neg_log_loss",
    "loss": "log loss",
    "common": """\
        _, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
        common = counts[numbers] >= 5  # rarer classes have no rows to compare models on
""",
}
_ROWS = """
# The rows to score have no label yet.
ROW_COLUMNS = tuple(name for name in {columns} if name != LABEL)
ROW_SCHEMA = {{name: type_ for name, type_ in COLUMNS.items() if name != LABEL}}
"""
_TEMPLATES = Path(__file__).with_name("project_files")
"""Folder with the project's files as :class:`string.Template`."""


def project_files(
    name: str, uri: str, encoding: str, table: TableDescription, *, spark: bool = False, is_batch: bool = False
) -> dict[str, str]:
    """Returns the source files of a project, by name; it prepares with DuckDB, or on Spark.

    Its model answers requests, or with ``is_batch`` scores tables.

    ``name`` must be an identifier, ``uri`` an absolute path or a URI; ``encoding`` is that of a CSV file.
    """
    label = _label_of(table)
    is_regression = table.problem == REGRESSION
    times = [column.name for column in table.columns if column.role == "time" and not column.layout]
    columns = f"(*COLUMNS, {', '.join(map(_literal, times))})" if times else "tuple(COLUMNS)"
    shown, read = _as_they_stand("DATA", [uri]), _as_they_stand(columns, [c.name for c in table.columns])
    source = "".join(
        f", {argument}={_as_they_stand(_literal(value), value)}" for argument, value in _csv_format(table, encoding)
    )
    score = _score(name, table, shown, source) if is_batch else ""
    others = [_literal(name) for role in ("key", "time", "weight") for name in table.named(role)]
    values = {
        "name": name,
        "data": _literal(uri),
        "label": _literal(label.name),
        "label_text": _in_docstring(label.name),
        "numbers": _literal(table.named("number")),
        "categories": _literal(table.named("category")),
        "estimator": "Regressor" if is_regression else "Classifier",
        **(_REGRESSION if is_regression else _CLASSIFICATION),
        "columns": _columns(table),
        "returned": "".join(f"{name}, " for name in ["LABEL", *others, '"reject_reason"']),
        "timedelta": "from datetime import timedelta\n\n" if table.newest_s else "",
        "uri": shown,
        "read": read,
        "literal": "from airflow.sdk import literal\n" if "literal(" in f"{shown}{read}{source}{score}" else "",
        "source": source,
        "score": score,
        "rows": _ROWS.format(columns=columns) if is_batch else "",
        "row_names": ", ROW_COLUMNS, ROW_SCHEMA" if is_batch else "",
        "scorer": f"``{name}_scoring`` scores each day's rows by the version that serves.\n" if is_batch else "",
        "prepare": _entries([*([("engine", "spark")] if spark else []), *_prepare(table)]),
        "evaluate": f"    evaluate={_literal({'minimum': dict(table.minimum)})},\n" if table.minimum else "",
        "min_rows": min(1000, max(100, table.rows // 2)),
        "pandas": _read_by_pandas(table, encoding),
        "imported": "COLUMNS, DATA" if table.format == "parquet" else "DATA",
        "texts": _texts_by_pandas(table),
    }
    sources = {}
    for path in sorted(_TEMPLATES.iterdir()):
        if path.name == f"prepare_{'duckdb' if spark else 'spark'}.py.template":
            continue
        file = {"test.py": f"test_{name}.py"}.get(path.stem, "prepare.py" if "prepare" in path.stem else path.stem)
        sources[file] = Template(path.read_text(encoding="utf-8")).substitute(values)
    for file, source in sources.items():
        ast.parse(source, file)
    return sources


def _label_of(table: TableDescription) -> ColumnDescription:
    label = table.only("label")
    assert label is not None
    return label


def _csv_format(table: TableDescription, encoding: str) -> Iterable[tuple[str, str | tuple[str, ...]]]:
    """Yields the arguments for a CSV format that differs from the default."""
    if table.format == "csv":
        if table.delimiter != ",":
            yield "delimiter", table.delimiter
        if table.quote is not None:
            yield "quote", table.quote
        if table.escape is not None:
            yield "escape", table.escape
        if tuple(table.null_values) != ("", "NA"):
            yield "null_values", tuple(table.null_values)
        if encoding != "utf8":
            yield "encoding", encoding
        if table.decimal != ".":
            yield "decimal", table.decimal
        if table.thousands:
            yield "thousands", table.thousands
        if table.units:
            yield "units", tuple(table.units)


def _score(name: str, table: TableDescription, uri: str, source: str) -> str:
    """Returns the argument ``score``: the same file, until a person names another one, without the label."""
    time = table.only("time")
    window = f", time_column={_as_they_stand(_literal(time.name), [time.name])}" if time else ""
    columns = f"columns={_as_they_stand('ROW_COLUMNS', [each.name for each in table.columns])}"
    shadow = (
        "" if table.only("key") else '        "score": {"shadow": True},  # a canary\'s rows are chosen by their key\n'
    )
    return (
        "    score={\n"
        f'        "rows": Source({uri}, {columns}, schema=ROW_SCHEMA{window}{source}),\n'
        f'        # "to": Table(conn_id="warehouse", name="{name}_scores"),  # of airflow_hops.extensions.tables\n'
        f'{shadow}        "is_paused_upon_creation": False,\n        "tags": ["hops", "{name}"],\n    }},\n'
    )


def _columns(table: TableDescription) -> str:
    """Returns the entries of the columns to read, in the file's order; ISO 8601 times need none."""
    label = _label_of(table)
    kinds = {"label": "float64" if table.problem == REGRESSION else _LABEL_TYPES[label.type], **_TYPES}
    names = {column.name: "LABEL" if column is label else _literal(column.name) for column in table.columns}
    typed = [(c, c.layout or kinds.get(c.role)) for c in table.columns if c.role != "unused"]
    return "".join(f'    {names[column.name]}: "{kind}",\n' for column, kind in typed if kind)


def _prepare(table: TableDescription) -> Iterable[tuple[str, Any]]:
    roles: tuple[Role, ...] = ("key", "time", "weight")
    yield from ((role, column.name) for role in roles if (column := table.only(role)) is not None)
    if table.newest_s:
        yield "newest", timedelta(seconds=table.newest_s)
    yield "problem", table.problem
    if table.classes is not None:
        yield "classes", list(table.classes)
    if (share := _label_of(table).missing / table.rows) > _REJECTED_BY_DEFAULT / 2:
        yield "max_rejected", min(1.0, math.ceil(share * 20 + 1) / 20)


def _as_they_stand(code: str, values: Iterable[str]) -> str:
    """Returns an argument of ``IngestOperator``, as ``literal()`` if Airflow would otherwise render or reformat it."""
    return f"literal({code})" if any({"{", "\n", "\r"} & set(value) for value in values) else code


def _read_by_pandas(table: TableDescription, encoding: str) -> str:
    if table.format == "parquet":
        return "    found = pd.read_parquet(DATA, columns=list(COLUMNS))"
    values = dict(_csv_format(table, encoding))
    missing = _literal(list(table.null_values))
    numbers = "[LABEL, *NUMBERS]" if table.problem == REGRESSION else "NUMBERS"
    marks = {**dict.fromkeys([" ", *table.units, *table.thousands], ""), table.decimal: "."}
    plain = [
        f"marks = str.maketrans({_literal(marks)})",
        f"for name in found.columns.intersection({numbers}):",
        "    found[name] = found[name].str.translate(marks).astype(float)",
    ]
    is_plain = not values.keys() & {"decimal", "thousands", "units"}
    lines = [
        "found = pd.read_csv(",
        "    DATA,",
        *([f"    sep={_literal(values['delimiter'])},"] if "delimiter" in values else []),
        *([f"    quotechar={_literal(table.quote)},"] if table.quote else []),
        *(["    quoting=3,  # QUOTE_NONE"] if table.quote == "" else []),
        *([f"    escapechar={_literal(table.escape)},"] if table.escape else []),
        *([f"    encoding={_literal(encoding)},"] if "encoding" in values else []),
        f"    dtype={'dict.fromkeys(CATEGORIES, str)' if is_plain else 'str'},",
        "    keep_default_na=False,",
        f"    na_values={missing},",
        ")",
        *([] if is_plain else plain),
    ]
    return "\n".join(f"    {line}" for line in lines)


def _texts_by_pandas(table: TableDescription) -> str:
    if table.format == "csv":
        return 'found[CATEGORIES].fillna("")'
    texts = 'found[CATEGORIES].astype(object).where(found[CATEGORIES].notna(), "")'
    if any(column.type == "boolean" and column.role == "category" for column in table.columns):
        return f'{texts}.replace({{True: "true", False: "false"}})'
    return texts


def _entries(values: Iterable[tuple[str, object]]) -> str:
    return "".join(f"        {_literal(name)}: {_literal(value, '        ')},\n" for name, value in values)


def _literal(value: object, indent: str = "") -> str:
    """Returns a value as Python code, formatted as ruff does."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if value.isprintable() else repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(name)}: {_literal(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        opening, closing = "[]" if isinstance(value, list) else "()"
        items = [_literal(item) for item in value]
        line = opening + ", ".join(items) + ("," if len(items) == 1 and isinstance(value, tuple) else "") + closing
        if len(line) + len(indent) <= _WIDTH:
            return line
        return f"{opening}\n" + "".join(f"{indent}    {item},\n" for item in items) + f"{indent}{closing}"
    if isinstance(value, timedelta):
        days, minutes = value.days, value.seconds // 60
        return f"timedelta({', '.join(f'{k}={n}' for k, n in (('days', days), ('minutes', minutes)) if n)})"
    return repr(value)


def _in_docstring(text: str) -> str:
    """Returns text that is safe in a docstring: one line, without quotes and escapes."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line.translate({ord('"'): "'", ord("\\"): "/", ord("`"): "'"})
