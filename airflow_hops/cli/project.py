"""The files of a new project: a pipeline for one table, as a person would write it."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable
from datetime import timedelta
from string import Template
from typing import Any

from airflow_hops.core.contract.table_columns import ColumnDescription, Role, TableDescription
from airflow_hops.core.contract.target import REGRESSION

_WIDTH = 110
_TYPES: dict[Role, str] = {"number": "float64", "category": "string", "key": "string", "weight": "float64"}
_LABEL_TYPES = {"text": "string", "integer": "int64", "boolean": "bool", "float": "float64"}
_REJECTED_BY_DEFAULT = 0.1

_PACKAGE = '"""The $name pipeline, from the rows of a file to a served model."""\n'

_FEATURES = '''"""The columns that are read from the file, and the features of the model."""

DATA = $data
LABEL = $label

# The columns of the file that prepare() gets, by type.
COLUMNS = {
$columns}

# The features: columns that prepare() returns, those that it derives included, and that clients send.
NUMBERS = $numbers
CATEGORIES = $categories
'''

_PREPARE = '''"""The rows to train on."""

from $name.features import CATEGORIES, LABEL, NUMBERS


def prepare(spark, tables):
    """Returns one row for each row of the table.

    Derive columns or join other tables here, and list what shall be a feature in NUMBERS or CATEGORIES: with
    ``import pyspark.sql.functions as F``, ``rows = rows.withColumn("ratio", F.col("paid") / F.col("due"))``.
    """
    rows = tables["$name"]
    returned = {$returned*NUMBERS, *CATEGORIES}
    return rows.drop(*(name for name in rows.columns if name not in returned))
'''

_MODEL = '''"""The model: gradient-boosted trees, which need no scaling and take missing values."""

from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoosting$estimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder
from threadpoolctl import threadpool_limits

from $name.features import CATEGORIES, NUMBERS


def fit(rows, labels, weights=None):
    """Trains on a data frame in which a missing number is NaN and a missing category is empty."""
    encode = make_column_transformer(
        ("passthrough", NUMBERS),
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), CATEGORIES),
    )
    trees = HistGradientBoosting$estimator(random_state=0)
    with threadpool_limits(1):  # one thread is fastest for small data, above all on a busy machine
        return make_pipeline(encode, trees).fit(rows, labels, histgradientboosting${step}__sample_weight=weights)


def train(context):
    """Returns the model that the pipeline exports, evaluates and deploys."""
    rows = context.table("train", columns=[*NUMBERS, *CATEGORIES])
    return fit(rows.frame(), rows.labels, rows.weights)
'''

_TRAINING = '''"""Trains a model of ``$label_text``, and serves it if it is no worse than the previous one."""

${timedelta}from airflow.sdk import DAG, Asset$literal

from airflow_hops.operators import (
    DeployModelOperator,
    EvaluateOperator,
    InfraValidateOperator,
    IngestOperator,
    PrepareOperator,
    SchemaOperator,
    Source,
    StatisticsOperator,
    TrainOperator,
    ValidateExamplesOperator,
)
from $name.features import COLUMNS, DATA, LABEL

with DAG(
    "${name}_training",
    schedule=[Asset("${name}_drifted")],
    is_paused_upon_creation=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["hops", "$name"],
):
    raw = IngestOperator(
        task_id="ingest",
        sources={"$name": Source($uri, columns=$read, schema=COLUMNS$source)},
    )
    examples = PrepareOperator(
        task_id="prepare",
        prepare="$name.prepare:prepare",
        tables=raw.output,
        label=LABEL,
$prepare    )
    statistics = StatisticsOperator(task_id="statistics", examples=examples.output)
    # The schema follows the data until a model that was trained with it is deployed.
    schema = SchemaOperator(task_id="schema", statistics=statistics.output, freeze_at="deployment")
    validation = ValidateExamplesOperator(
        task_id="validate",
        statistics=statistics.output,
        schema=schema.output,
        model_name="$name",  # training data that looks broken beside the serving model's stops the run
    )
    model = TrainOperator(
        task_id="train",
        train="$name.model:train",
        examples=examples.output,
        statistics=statistics.output,
        schema=schema.output,
    )
    evaluation = EvaluateOperator(
        task_id="evaluate",
        model=model.output,
        examples=examples.output,
        model_name="$name",
$evaluate    )
    infra = InfraValidateOperator(task_id="infra_validate", model=model.output, examples=examples.output)
    DeployModelOperator(
        task_id="deploy",
        model=model.output,
        model_name="$name",
        evaluation=evaluation.output,
        infra_blessing=infra.output,
    )

    validation >> model
'''

_MONITORING = '''"""Compares requests with the training data, and requests a retraining if they differ."""

from airflow.sdk import DAG, Asset

from airflow_hops.operators import SkewOperator
from airflow_hops.retraining import RequestRetrainingOperator

with DAG(
    "${name}_monitoring",
    schedule="@daily",
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["hops", "$name"],
):
    skew = SkewOperator(task_id="skew", model_name="$name", min_rows=$min_rows)
    RequestRetrainingOperator(task_id="request_retraining", skew=skew.output, asset=Asset("${name}_drifted"))
'''

_TEST = '''"""The model, on rows of the file."""

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import Dummy$estimator

from $name.features import CATEGORIES, $imported, LABEL, NUMBERS
from $name.model import fit


@pytest.fixture(scope="module")
def rows():
    """The file's rows; features that prepare() derives are 0 here."""
$pandas
    found = found.dropna(subset=[LABEL]).head(10_000)
    found = found.reindex(columns=[LABEL, *NUMBERS, *CATEGORIES], fill_value=0)
    found[CATEGORIES] = $texts
    return found.astype(dict.fromkeys(NUMBERS, float))


@pytest.fixture(scope="module")
def model(rows):
    return fit(rows[[*NUMBERS, *CATEGORIES]], rows[LABEL])


def test_the_model_is_better_than_a_constant_guess(model, rows):
    guess = Dummy$estimator().fit(rows, rows[LABEL])
    assert model.score(rows, rows[LABEL]) >= guess.score(rows, rows[LABEL])


def test_a_row_without_values_gets_a_prediction(model):
    unknown = pd.DataFrame([{**dict.fromkeys(NUMBERS, np.nan), **dict.fromkeys(CATEGORIES, "")}])
    assert len(model.predict(unknown)) == 1
'''


def project_files(name: str, uri: str, encoding: str, table: TableDescription) -> dict[str, str]:
    """The sources of a project, by file name.

    Args:
        name: Its package: an identifier.
        uri: Where the rows are: an absolute path, or a URI.
        encoding: Of CSV.
        table: The table's columns, whatever their names.

    Raises:
        SyntaxError: a source is no Python, which is an error of this module.
    """
    label = _label_of(table)
    is_regression = table.problem == REGRESSION
    times = [column.name for column in table.columns if column.role == "time" and not column.layout]
    columns = f"(*COLUMNS, {', '.join(map(_literal, times))})" if times else "tuple(COLUMNS)"
    shown, read = _as_they_stand("DATA", [uri]), _as_they_stand(columns, [c.name for c in table.columns])
    others = [_literal(name) for role in ("key", "time", "weight") for name in table.named(role)]
    values = {
        "name": name,
        "data": _literal(uri),
        "label": _literal(label.name),
        "label_text": _in_docstring(label.name),
        "numbers": _literal(table.named("number")),
        "categories": _literal(table.named("category")),
        "estimator": "Regressor" if is_regression else "Classifier",
        "step": "regressor" if is_regression else "classifier",
        "columns": _columns(table),
        "returned": "".join(f"{name}, " for name in ["LABEL", *others, '"reject_reason"']),
        "timedelta": "from datetime import timedelta\n\n" if table.newest_s else "",
        "uri": shown,
        "read": read,
        "literal": ", literal" if {shown, read} != {"DATA", columns} else "",
        "source": "".join(f", {name}={_literal(value)}" for name, value in _csv_format(table, encoding)),
        "prepare": _arguments(_prepare(table)),
        "evaluate": _arguments([("minimum", dict(table.minimum))] if table.minimum else []),
        "min_rows": min(1000, max(100, table.rows // 2)),
        "pandas": _read_by_pandas(table, encoding),
        "imported": "COLUMNS, DATA" if table.format == "parquet" else "DATA",
        "texts": _texts_by_pandas(table),
    }
    templates = {
        "__init__.py": _PACKAGE,
        "training.py": _TRAINING,
        "monitoring.py": _MONITORING,
        "features.py": _FEATURES,
        "prepare.py": _PREPARE,
        "model.py": _MODEL,
        f"test_{name}.py": _TEST,
    }
    sources = {file: Template(template).substitute(values) for file, template in templates.items()}
    for file, source in sources.items():
        ast.parse(source, file)
    return sources


def _label_of(table: TableDescription) -> ColumnDescription:
    label = table.only("label")
    assert label is not None
    return label


def _csv_format(table: TableDescription, encoding: str) -> Iterable[tuple[str, Any]]:
    """What is said of a CSV file that is not as most are."""
    if table.format == "csv":
        if table.delimiter != ",":
            yield "delimiter", table.delimiter
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


def _columns(table: TableDescription) -> str:
    """Entries of the columns that are read, in the file's order; a time in ISO 8601 is read as it is."""
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
    """An argument of ``IngestOperator``, literal where Airflow would render it as a template, or change its lines."""
    return f"literal({code})" if any({"{", "\n", "\r"} & set(value) for value in values) else code


def _read_by_pandas(table: TableDescription, encoding: str) -> str:
    if table.format == "parquet":
        return "    found = pd.read_parquet(DATA, columns=list(COLUMNS))"
    given = dict(_csv_format(table, encoding))
    missing = _literal(list(table.null_values))
    numbers = "[LABEL, *NUMBERS]" if table.problem == REGRESSION else "NUMBERS"
    marks = {**dict.fromkeys([" ", *table.units, *table.thousands], ""), table.decimal: "."}
    plain = [
        f"marks = str.maketrans({_literal(marks)})",
        f"for name in found.columns.intersection({numbers}):",
        "    found[name] = found[name].str.translate(marks).astype(float)",
    ]
    is_plain = not given.keys() & {"decimal", "thousands", "units"}
    lines = [
        "found = pd.read_csv(",
        "    DATA,",
        *([f"    sep={_literal(given['delimiter'])},"] if "delimiter" in given else []),
        *([f"    encoding={_literal(encoding)},"] if "encoding" in given else []),
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


def _arguments(given: Iterable[tuple[str, Any]]) -> str:
    return "".join(f"        {name}={_literal(value, '        ')},\n" for name, value in given)


def _literal(value: Any, indent: str = "") -> str:
    """A value in Python, as the formatters write it."""
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
    """Text within a docstring: on one line, without what would end it or be read as an escape."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line.translate({ord('"'): "'", ord("\\"): "/", ord("`"): "'"})
