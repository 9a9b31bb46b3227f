"""Literal arguments of operators, which are checked while the DAG is parsed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
from airflow.sdk import DAG, task

from airflow_hops import operators
from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.operators import (
    BatchPredictOperator,
    CollectGarbageOperator,
    DeployModelOperator,
    EvaluateOperator,
    HorovodTrainOperator,
    InfraValidateOperator,
    IngestOperator,
    PerformanceOperator,
    PrepareOperator,
    PromoteModelOperator,
    RequestRetrainingOperator,
    RolloutOperator,
    SchemaOperator,
    SetTrafficOperator,
    SkewOperator,
    StatisticsOperator,
    TrainOperator,
    TransformOperator,
    ValidateExamplesOperator,
)
from airflow_hops.operators.base import HopsTask
from airflow_hops.sensors.model_version import ModelVersionSensor

deploy = partial(DeployModelOperator, task_id="t", model={}, model_name="m")
evaluate = partial(EvaluateOperator, task_id="t", model={}, examples={}, model_name="m")
horovod = partial(HorovodTrainOperator, task_id="t")
ingest = partial(IngestOperator, task_id="t")
prepare = partial(PrepareOperator, task_id="t", tables={})
rollout = partial(RolloutOperator, task_id="t", deployment={})
skew = partial(SkewOperator, task_id="t", model_name="m")
validate = partial(ValidateExamplesOperator, task_id="t", statistics={}, schema={})
TEMPLATE = "{{ params.it }}"


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (deploy, {"model_name": "my model"}, "'t': model_name is 'my model', expected letters, digits, '_', '.'"),
        (deploy, {"model_name": None}, "model_name is None, expected letters"),
        (deploy, {"canary_percent": 150}, "canary_percent is 150, expected a whole number from 1 to 100"),
        (deploy, {"canary_percent": 20.0}, "canary_percent is 20.0, expected a whole number from 1 to 100"),
        (deploy, {"canary_percent": True}, "canary_percent is True, expected"),
        (deploy, {"canary_percent": TEMPLATE}, "expected a whole number from 1 to 100; the argument is not templated"),
        (deploy, {"takes_over": "yes"}, "takes_over is 'yes', expected True or False"),
        (deploy, {"available_timeout_s": float("nan")}, "available_timeout_s is nan, expected a number above 0"),
        (deploy, {"launcher_name": "kubernets"}, "launcher_name is 'kubernets'; did you mean 'kubernetes'"),
        (evaluate, {"metric": "acuracy"}, "metric 'acuracy' is unknown; did you mean 'accuracy'"),
        (evaluate, {"minimum": {"delay/rmsee": 3}}, "metric 'rmsee' is unknown; did you mean 'rmse'"),
        (evaluate, {"minimum": {"auc": "0.6"}}, r"minimum\['auc'\] is '0.6', expected a number"),
        (evaluate, {"metrics": {"cost": ("m:f", "smaller")}}, r"metrics\['cost'\]\[1\] is 'smaller', .*'lower'"),
        (evaluate, {"splits": "eval"}, "splits is 'eval', expected a list of text, or None"),
        (horovod, {"train": "m:f", "np": "2"}, "np is '2', expected a whole number, 1 or more, or 'auto'"),
        (horovod, {"train": "m:f", "strategy": "horovd"}, "strategy is 'horovd', .*mean 'horovod'"),
        (horovod, {"train": "m:f", "parameter_servers": 1}, "parameter_servers is 1, expected 0"),
        (horovod, {}, "expected train or script, found none"),
        (horovod, {"train": "m:f", "script": "train.py"}, "expected train or script, found both"),
        (TrainOperator, {"task_id": "t", "train": print}, "train is <built-in .*the name of a function in a module"),
        (TrainOperator, {"task_id": "t", "train": "m.f"}, "train is 'm.f', .*'module:function'"),
        (TrainOperator, {"task_id": "t"}, "expected train, found none"),
        (ingest, {"sources": "x.csv"}, "sources is 'x.csv', expected a mapping"),
        (ingest, {"sources": {"t": 3}}, r"sources\['t'\] is 3, expected a RowSource"),
        (ingest, {"sources": {"t": "/x.csv"}, "window_end": "today"}, "window_end is 'today', .*ISO 8601"),
        (prepare, {"prepare": lambda spark, tables: None, "label": "y"}, "prepare is <function .*'module:function'"),
        (prepare, {"prepare": "m:f", "label": "y", "eval_percent": "20"}, "eval_percent is '20', expected a whole"),
        (rollout, {"steps": (50, 20, 100)}, r"steps is \[50, 20, 100\]; expected ascending"),
        (rollout, {"significance": 1}, "significance is 1, expected a number above 0 and below 1"),
        (rollout, {"on_approval_timeout": "rollback"}, "on_approval_timeout is 'rollback', .*mean 'roll_back'"),
        (skew, {"thresholds": {"x": 2}}, r"thresholds\['x'\] is 2, expected a share from 0 to 1"),
        (skew, {"silent_after": 3}, "silent_after is 3, expected a timedelta above 0, or None"),
        (validate, {"on_anomaly": {"eror": "fail"}}, "a key of on_anomaly is 'eror', .*mean 'error'"),
        (validate, {"assigned_users": ["ada"]}, r"assigned_users\[0\] is 'ada'"),
        (BatchPredictOperator, {"task_id": "t", "examples": {}}, "expected one of them"),
        (BatchPredictOperator, {"task_id": "t", "examples": {}, "model_name": "m", "version": "chalenger"}, "champion"),
        (CollectGarbageOperator, {"task_id": "t", "keep_days": 0.5}, "keep_days is 0.5, expected a number of at least"),
        (InfraValidateOperator, {"task_id": "t", "model": {}, "examples": {}, "requests": 0}, "requests is 0"),
        (ModelVersionSensor, {"task_id": "t", "model_name": "a b"}, "model_name is 'a b'"),
        (
            PerformanceOperator,
            {"task_id": "t", "model_name": "m", "keys": "id"},
            "keys is 'id', expected a list",
        ),
        (PerformanceOperator, {"task_id": "t", "model_name": "m", "ages": [timedelta(2), timedelta(1)]}, "ages is"),
        (
            PromoteModelOperator,
            {"task_id": "t", "model_name": "m", "version": "v3"},
            "version is 'v3', expected a",
        ),
        (RequestRetrainingOperator, {"task_id": "t", "skew": {}, "asset": "drifted"}, "asset is 'drifted', .* Asset"),
        (SchemaOperator, {"task_id": "t", "statistics": {}, "distance": 2}, "distance is 2, .*from 0 to 1"),
        (SetTrafficOperator, {"task_id": "t", "model_name": "m", "percents": {"v1": 9}}, "a key of percents is 'v1'"),
        (StatisticsOperator, {"task_id": "t", "examples": {}, "engine": "sparc"}, "engine is 'sparc', .*spark"),
        (
            TransformOperator,
            {"task_id": "t", "preprocess": 1, "examples": 0, "statistics": 0, "schema": 0},
            "is 1, ex",
        ),
    ],
)
def test_wrong_literal_is_refused_by_name(make: Callable[..., Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make(**arguments)


@pytest.mark.parametrize(
    "decorator", [task.horovod, task.torch, partial(task.search, space={}, metric="m", direction="minimize")]
)
def test_wrong_literal_of_a_decorator_is_refused(decorator: Any) -> None:
    def train(context: Any) -> None:
        pass

    with pytest.raises(BadInput, match=r"'train': np is '2', expected a whole number, 1 or more"):
        decorator(np="2")(train)()


def test_templates_and_outputs_of_tasks_pass() -> None:
    with DAG("templates", schedule=None):
        output = ingest(sources={"t": TEMPLATE}, window_start=TEMPLATE).output
        ingest(task_id="again", sources={"t": output})
        prepare(task_id="prepare", prepare=TEMPLATE, label="y", conf={"spark.executor.cores": TEMPLATE})
        deploy(task_id="deploy", model_name=TEMPLATE, evaluation=output)
        deploy(task_id="late", model_name=output["name"])
        evaluate(task_id="evaluate", splits=TEMPLATE, slices=[TEMPLATE])
        PromoteModelOperator(task_id="promote", model_name="m", version="{% if 1 %}3{% endif %}")
        SetTrafficOperator(task_id="set", model_name="m", percents=output)


def test_types_of_all_arguments_are_known_while_a_dag_is_parsed() -> None:
    def subclasses(of: type) -> Iterator[type]:
        for each in of.__subclasses__():
            yield each
            yield from subclasses(each)

    own = {each for each in subclasses(HopsTask) if each.__module__.startswith("airflow_hops.")}
    assert {getattr(operators, name) for name in operators.__all__ if name.endswith("Operator")} <= own
    for each in own:
        get_type_hints(inspect.unwrap(each.__init__))  # type: ignore[misc]


def test_artifact_of_another_kind_is_refused() -> None:
    def artifact(kind: str) -> dict[str, str]:
        return {"uri": f"file:///{kind}", "kind": kind, "fingerprint": "f"}

    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)
    hook: Any = SimpleNamespace(settings=SimpleNamespace(launcher=None), store=ArtifactStore("/nowhere"))
    context: Any = {"ti": ti, "dag": SimpleNamespace(fileloc=__file__), "params": {}}
    train = TrainOperator(task_id="t", train="m:f", examples=artifact("snapshot"))
    message = "input 'examples' is file:///snapshot, an artifact of kind 'snapshot'; expected 'examples' or 'transf"
    with pytest.raises(BadInput, match=message):
        train.build_spec(hook, context)
    with pytest.raises(BadInput, match="kind 'infra_blessing'; expected 'evaluation'"):
        deploy(model=artifact("model"), evaluation=artifact("infra_blessing")).build_spec(hook, context)
    train.examples = artifact("of_my_own")
    assert train.build_spec(hook, context).inputs["examples"][0].kind == "of_my_own"
