"""Mistakes in the README's pipeline are import errors that name file and line; functions are as good as their names."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from step_runner import REPOSITORY

from airflow_hops import (
    BadInput,
    EvaluateOperator,
    HorovodTrainOperator,
    PrepareOperator,
    TrainOperator,
    TransformOperator,
    training_loop,
)
from airflow_hops.core.errors import dag_place

LOOP = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)[0]
HAND = """from airflow.sdk import DAG
from airflow_hops import (
    DeployModelOperator, EvaluateOperator, HorovodTrainOperator, IngestOperator, InfraValidateOperator,
    PrepareOperator, SchemaOperator, StatisticsOperator, TrainOperator, ValidateExamplesOperator,
)
with DAG("churn", schedule=None):
    raw = IngestOperator(sources={"events": "/lake/events.csv"})
    examples = PrepareOperator(prepare="churn.prepare:prepare", tables=raw.output, label="churned")
    statistics = StatisticsOperator(examples=examples.output)
    schema = SchemaOperator(statistics=statistics.output)
    valid = ValidateExamplesOperator(statistics=statistics.output, schema=schema.output)
    described = {"statistics": statistics.output, "schema": schema.output}
    model = TrainOperator(train="churn.model:train", examples=examples.output, **described)
    evaluation = EvaluateOperator(model=model.output, examples=examples.output, model_name="churn")
    infra = InfraValidateOperator(model=model.output, examples=examples.output)
    deploy = DeployModelOperator(model=model.output, model_name="churn", evaluation=evaluation.output)
    valid >> model
"""
FUNCTIONS = {
    "prepare.py": "def prepare(connection, tables):\n    return tables['events']\n",
    "model.py": "def train(context):\n    return context.model\n",
    "features.py": "def preprocess(features, constants):\n    return features\n",
}
SOURCE = 'Source("s3://lake/events/*.csv.gz", time_column="at")'
PREPARE = '"churn.prepare:prepare"'
POLICY = "    policy=RetrainingPolicy(when=Drift(consecutive=2)),\n"

IN_THE_LOOP = {
    ("training_loop\n", "trainingloop\n"): "cannot import name 'trainingloop'",
    (' label="churned",', ""): "missing 1 required keyword-only argument: 'label'",
    ('label="churned"', 'lable="churned"'): "missing 1 required keyword-only argument: 'label'",
    ('label="churned"', 'label=["churned"]'): "label is ['churned'], expected text",
    ('label="churned"', 'label=""'): "label is empty",
    ('key="customer"', "key=3"): "key is 3, expected text",
    (' time="at",', ""): "newest needs a time",
    ("timedelta(days=1)", '"1d"'): "newest is '1d', expected a timedelta",
    ("timedelta(days=1)", "timedelta(days=-1)"): "newest is -86400.0 seconds",
    ('    "churn",', '    "my churn",'): "my churn",
    ("time_column", "time_colum"): "unexpected keyword argument 'time_colum'",
    (SOURCE, '"lake/events.csv"'): "sources['events'] is 'lake/events.csv'; expected an absolute path or a URI",
    (SOURCE, "Source(3)"): "sources['events'] is 3; expected an absolute path or a URI",
    (f'{{"events": {SOURCE}}}', "{}"): "sources is empty",
    (f'{{"events": {SOURCE}}}', '"/lake/events.csv"'): "sources is '/lake/events.csv', expected a mapping",
    (PREPARE, '{"prepare": "churn.prepare:prepare", "engine": "dukdb"}'): "did you mean 'duckdb'?",
    (PREPARE, '{"prepare": "churn.prepare:prepare", "eval_precent": 3}'): "did you mean 'eval_percent'?",
    (PREPARE, '{"engine": "duckdb"}'): "missing keyword argument 'prepare'",
    (PREPARE, '{"prepare": "churn.prepare:prepare", "problem": "binari"}'): "did you mean 'binary'?",
    ('"churn.model:train"', '"churn.model:trian"'): "has no function 'trian'; did you mean 'train'?",
    ('"churn.model:train"', '"churn.modle:train"'): "there is no module 'modle' in ",
    ('"churn.model:train"', '"chrun.model:train"'): "there is no module 'chrun' in ",
    ('"churn.model:train"', '"churn:model"'): "has no function 'model'",
    ('"churn.model:train"', '"churn.model.train"'): "expected a function of a module beside the DAG file, or its name",
    ('"churn.model:train"', "lambda context: None"): "is a lambda, which has no name",
    ('"churn.model:train"', "None"): "expected train, found none",
    ("consecutive=2", "consecutive=0"): "consecutive is 0",
    ("when=Drift(consecutive=2)", 'when="drift"'): "drift",
    (POLICY, f'    schedule="@daily",\n{POLICY}'): "the policy's asset 'churn_drifted' starts nothing",
    (POLICY, '    monitoring={"skew": {}},\n'): "monitoring has no effect without policy",
    (POLICY, f'    monitoring={{"skew": {{"min_row": 3}}}},\n{POLICY}'): "did you mean 'min_rows'?",
    (POLICY, f"    evaluat={{}},\n{POLICY}"): "no argument 'evaluat'; did you mean 'evaluate'",
    (POLICY, f'    evaluate={{"minimum": {{"acu": 0.7}}}},\n{POLICY}'): "did you mean 'auc'?",
    (POLICY, f"    evaluate=0.7,\n{POLICY}"): "evaluate is 0.7, expected arguments of an operator",
    (
        POLICY,
        f'    rollout={{"max_loss_increase": 1}},\n{POLICY}',
    ): "argument 'max_loss_increase'; it is a field of limits",
    (
        POLICY,
        f'    statistics={{"spark_conn_id": "spark"}},\n{POLICY}',
    ): "fields of the connection hops_conn_id name Spark",
    (POLICY, f"    rollout=True,\n{POLICY}"): "rollout is True, expected arguments of an operator",
    (POLICY, f'    deploy={{"canary_percent": 150}},\n{POLICY}'): "canary_percent is 150, expected a whole number",
    (POLICY, f'    deploy={{"evaluation": None}},\n{POLICY}'): "neither evaluation nor ungated is given",
    (POLICY, f'    np="2",\n{POLICY}'): "np is '2'",
}
"""Replacements in the README's pipeline, and what the error says."""

BY_HAND = {
    ("tables=raw.output", "tables=raw"): "tables is the task 'ingest'; expected its output",
    ("tables=raw.output", "tables=evaluation.output"): "name 'evaluation' is not defined",
    (', label="churned")', ")"): "missing keyword argument 'label'",
    (
        "examples=examples.output, **",
        "examples=raw.output, **",
    ): "examples is the output of 'ingest', an artifact",
    ("DeployModelOperator(model=model.output", "DeployModelOperator(model=examples.output"): "expected 'model'",
    (", evaluation=evaluation.output", ""): "neither evaluation nor ungated is given",
    ("evaluation=evaluation.output", "evaluation=infra.output"): "of kind 'infra_blessing'; expected 'evaluation'",
    ("evaluation=evaluation.output", 'evaluation="yes"'): "evaluation is 'yes'; expected the output of a task",
    ("    valid >> model\n", ""): "no deployment depends on the validation 'validate'",
    ("infra = InfraValidateOperator(", 'infra = InfraValidateOperator(task_id="evaluate", '): "Task id 'evaluate' has",
    (
        'TrainOperator(train="churn.model:train", examples=examples.output, **described)',
        'HorovodTrainOperator(script="churn/modle.py")',
    ): "script is 'churn/modle.py': there is no such file in ",
}


SOURCES = [
    ("prepare.py", "def prepare(tables): ...", "prepare.py:1: prepare takes (tables), but is called with 2 arguments"),
    ("prepare.py", "def prepare(connection, tables, more): ...", ":1: prepare takes (connection, tables, more), but"),
    ("prepare.py", "def prepare(connection, tables)\n    return tables\n", "prepare.py:1: expected ':'"),
    ("model.py", "\ndef train(): ...", "model.py:2: train takes (no arguments), but is called with 1 argument"),
    ("model.py", "def train(context, epoch): ...", "model.py:1: train takes (context, epoch), but"),
    ("model.py", "def train(context, *, epoch): ...", "model.py:1: train takes (context, *, epoch), but"),
    ("model.py", "async def train(context): ...", "model.py:1: train is async"),
    ("model.py", "train = 3\n", "model.py:1: train is 3; expected a function"),
    ("model.py", "def trian(context): ...", "model.py has no function 'train'; did you mean 'trian'?"),
    ("model.py", "x = (1\n", "model.py:1: '(' was never closed"),
    ("features.py", "x = 1", "TransformOperator 'transform': preprocess is 'churn.features:preprocess': "),
    ("features.py", "class preprocess: ...", None),
    ("features.py", "from .others import *", None),
    ("model.py", "import functools\n@functools.cache\ndef train(): ...", None),
    ("model.py", "try:\n    from a import train\nexcept ImportError:\n    train = None", None),
    ("model.py", "def train(context, more=1, *rest): ...", None),
    ("model.py", "def train(context, epochs, *, depth, more=1): ...", None),
    ("model.py", "def __getattr__(name): ...", None),
    ("model.py", "globals()['train'] = print", None),
    ("model.py", "match 1:\n    case 1:\n        def train(c): ...", None),
    # A step may have a newer Python.
    ("model.py", f"type Rows = int\n{FUNCTIONS['model.py']}", None),
    ("model.py", f"def f[T](x: T): ...\n{FUNCTIONS['model.py']}", None),
    ("model.py", f'TEXT = f"{{\n    1\n}}"\n{FUNCTIONS["model.py"]}', None),
    ("model.py", f"A = f'{{', '}}'\n{FUNCTIONS['model.py']}", None),
]
"""Sources of a function's module, and what the error says; None if there is none."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "churn"
    package.mkdir()
    for name, source in {"__init__.py": "", **FUNCTIONS}.items():
        (package / name).write_text(source)
    return tmp_path


def import_error(folder: Path, source: str) -> str:
    file = folder / f"{len(list(folder.iterdir()))}_pipeline.py"
    file.write_text(source)
    return "\n".join(DagBag(file).import_errors.values())


@pytest.mark.parametrize(("file", "source", "expected"), SOURCES)
def test_functions_are_checked_by_their_source(folder: Path, file: str, source: str, expected: str | None) -> None:
    (folder / "churn" / file).write_text(source)
    training = '{"train": "churn.model:train", "params": {"epochs": 1, "depth": 2}}'
    source = LOOP.replace('"churn.model:train"', f'{training}, transform="churn.features:preprocess"')
    error = import_error(folder, source)
    assert error == "" if expected is None else expected in error
    assert expected is None or re.search(rf'{folder}/1_pipeline\.py(:|", line )\d', error), error


def test_validation_that_no_deployment_depends_on_is_refused(folder: Path) -> None:
    source = """
from airflow.sdk import DAG
from airflow_hops import DeployModelOperator, ValidateExamplesOperator

with DAG("passes_by", schedule=None):
    valid = ValidateExamplesOperator(task_id="validate", statistics={}, schema={})
    deploy = DeployModelOperator(task_id="deploy", model={}, model_name="churn", ungated="a test")
"""
    mapped = "    valid >> ValidateExamplesOperator.partial(task_id='x', statistics={}).expand(schema=[{}])\n"
    for wrong in (source, source + mapped):
        assert "DAG 'passes_by': no deployment depends on the validation 'validate'" in import_error(folder, wrong)
    warning = source.replace("schema={})", "schema={}, on_anomaly='warn')")
    for right in (f"{source}    valid >> deploy\n", f"{source}    deploy >> valid\n", warning):
        assert import_error(folder, right) == ""


def test_the_pipelines_without_mistakes_are_accepted(folder: Path) -> None:
    assert len([line for line in LOOP.splitlines() if line]) <= 12
    assert import_error(folder, LOOP) == import_error(folder, HAND) == ""


@pytest.mark.parametrize(
    ("source", "old", "new", "expected"),
    [(source, *edit, text) for source, cases in ((LOOP, IN_THE_LOOP), (HAND, BY_HAND)) for edit, text in cases.items()],
    ids=range(len(IN_THE_LOOP | BY_HAND)),
)
def test_mistake_in_a_pipeline_is_found(folder: Path, source: str, old: str, new: str, expected: str) -> None:
    assert old in source
    error = import_error(folder, source.replace(old, new, 1))
    assert expected in error
    assert re.search(r'pipeline\.py(:|", line )\d', error), error


def test_a_folder_of_data_does_not_hide_a_library_of_its_name(folder: Path) -> None:
    (folder / "queries").mkdir()
    (folder / "queries" / "churn.sql").write_text("")
    assert import_error(folder, LOOP.replace("churn.model:train", "queries.model:train")) == ""


@pytest.fixture
def churn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Modules of user code, as a DAG file imports them."""
    monkeypatch.syspath_prepend(folder)
    (folder / "churn" / "metrics.py").write_text("def cost(labels, predictions, weights):\n    return 0.0\n")
    yield lambda name: importlib.import_module(f"churn.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "churn"]:
        del sys.modules[name]


def test_functions_become_their_names(churn: Any, folder: Path) -> None:
    dags = []
    for prepare, preprocess, train, cost in (
        ("churn.prepare:prepare", "churn.features:preprocess", "churn.model:train", "churn.metrics:cost"),
        (churn("prepare").prepare, churn("features").preprocess, churn("model").train, churn("metrics").cost),
    ):
        made = training_loop(
            "churn", sources={"events": "/lake/events.csv"}, label="churned", prepare=prepare, transform=preprocess,
            train=train, evaluate={"metrics": {"cost": (cost, "lower")}},
        )  # fmt: skip
        assert isinstance(made, DAG)
        dags.append(made)
    names, functions = ({task.task_id: task for task in dag.tasks} for dag in dags)
    arguments = {"prepare": "prepare", "transform": "preprocess", "train": "train", "evaluate": "metrics"}
    for task, argument in arguments.items():
        assert getattr(functions[task], argument) == getattr(names[task], argument)
    assert functions["train"].train == "churn.model:train"
    assert names["prepare"].step_params({}) == functions["prepare"].step_params({})  # parts of the cache key
    assert DagSerialization.to_dict(dags[0])["dag"]["tasks"] == DagSerialization.to_dict(dags[1])["dag"]["tasks"]


def test_functions_are_mapped(churn: Any, folder: Path) -> None:
    with DAG("mapped", schedule=None) as dag:
        mapped: Any = TrainOperator.partial(task_id="train", examples={}).expand(train=[churn("model").train, "a:b"])
    assert DagSerialization.to_dict(dag) == DagSerialization.to_dict(dag)
    values = mapped.expand_input.value["train"]
    assert [mapped.unmap({"train": value}).train for value in values] == ["churn.model:train", "a:b"]


class OfAClass:
    def method(self, context: Any) -> None: ...


def local_function() -> Any:
    def train(context: Any) -> None: ...

    return train


def renamed(context: Any) -> None: ...


renamed.__module__ = "__main__"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda context: None, "is a lambda, which has no name"),
        (local_function(), "defined within a function or class"),
        (OfAClass.method, "is OfAClass.method, defined within a function or class"),
        (OfAClass().method, "method belongs to an object"),
        (functools.partial(import_error, 1), "is a functools.partial"),
        (renamed, "is renamed of the DAG file, which steps do not import"),
        (functools.wraps(import_error)(lambda context: None), "is not what test_mistakes has as import_error"),
    ],
)
def test_function_without_a_name_for_the_step_is_refused(function: Any, expected: str) -> None:
    metrics = {"cost": (function, "lower")}
    for operator, arguments in (
        (HorovodTrainOperator, {"task_id": "train", "train": function}),
        (TransformOperator, {"preprocess": function, "examples": {}, "statistics": {}, "schema": {}}),
        (PrepareOperator, {"prepare": function, "tables": {}, "label": "y"}),
        (EvaluateOperator, {"model": {}, "examples": {}, "model_name": "m", "metrics": metrics}),
    ):
        with pytest.raises(BadInput, match=expected) as error:
            operator(**arguments)
        assert operator is not HorovodTrainOperator or "its name, 'module:function'" in str(error.value)


def test_function_of_the_dag_file_is_refused_and_checked_like_its_name(folder: Path) -> None:
    source = LOOP.replace("dag =", "def train(context): ...\ndag =").replace('"churn.model:train"', "train")
    assert "train is train of the DAG file, which steps do not import, since they have no Airflow" in import_error(
        folder, source
    )
    (folder / "loose.py").write_text("def train(): ...\n")
    sys.path.insert(0, str(folder))
    try:
        source = "from loose import train\n" + LOOP.replace('"churn.model:train"', "train")
        assert "loose.py:1: train takes (no arguments), but is called with 1 argument" in import_error(folder, source)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("loose", None)
    assert dag_place() is None
