"""Literal arguments of operators, which are checked while the DAG is parsed."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
from airflow.sdk import DAG, Asset, ExceptionRetryPolicy, task, task_group

from airflow_hops import operators
from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import StepOptions
from airflow_hops.core.performance import PerformanceOptions
from airflow_hops.core.prepare.options import PrepareOptions
from airflow_hops.core.skew import SkewOptions
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.operators import (
    DeployModelOperator,
    EvaluateOperator,
    HorovodTrainOperator,
    IngestOperator,
    PerformanceOperator,
    PrepareOperator,
    PromoteModelOperator,
    RolloutOperator,
    SetTrafficOperator,
    SkewOperator,
    TrainOperator,
    ValidateExamplesOperator,
)
from airflow_hops.operators.base import HopsTask

deploy = partial(DeployModelOperator, task_id="t", model={}, model_name="m", evaluation={})
evaluate = partial(EvaluateOperator, task_id="t", model={}, examples={}, model_name="m")
horovod = partial(HorovodTrainOperator, task_id="t")
ingest = partial(IngestOperator, task_id="t")
prepare = partial(PrepareOperator, task_id="t", tables={})
rollout = partial(RolloutOperator, task_id="t", deployment={})
skew = partial(SkewOperator, task_id="t", model_name="m")
validate = partial(ValidateExamplesOperator, task_id="t", statistics={}, schema={})
TEMPLATE = "{{ params.it }}"
FIRST: dict[str, Any] = {"model_name": "m", "table": "iceberg://a/b", "train": "m:f", "asset": Asset("a"), "space": {}}
FIRST |= {"direction": "minimize", "height": 1, "width": 1, "channels": 1, "policies": ["p"]}
"""Arguments that take no template, or are checked before others."""


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (deploy, {"model_name": "my model"}, "'t': model_name is 'my model', expected letters, digits, '_', '.'"),
        (deploy, {"canary_percent": 150}, "canary_percent is 150, expected a whole number from 1 to 100"),
        (deploy, {"canary_percent": True}, "canary_percent is True, expected"),
        (deploy, {"canary_percent": TEMPLATE}, "expected a whole number from 1 to 100; the argument is not templated"),
        (deploy, {"available_timeout_s": float("nan")}, "available_timeout_s is nan, expected a number above 0"),
        (deploy, {"launcher_name": "kubernets"}, "launcher_name is 'kubernets', .*; did you mean 'kubernetes'"),
        (evaluate, {"metric": "acuracy"}, "metric is 'acuracy', .*; did you mean 'accuracy'"),
        (evaluate, {"minimum": {"delay/rmsee": 3}}, "metric is 'rmsee', .*; did you mean 'rmse'"),
        (evaluate, {"metrics": {"cost": ("m:f", "smaller")}}, r"metrics\['cost'\]\[1\] is 'smaller', .*'lower'"),
        (evaluate, {"splits": "eval"}, "splits is 'eval', expected a list of text, or None"),
        (horovod, {"train": "m:f", "np": "2"}, r"np is '2', expected a whole number, 1 or more, or \(a whole number"),
        (horovod, {"train": "m:f", "strategy": "horovd"}, "strategy is 'horovd', .*mean 'horovod'"),
        (horovod, {"train": "m:f", "parameter_servers": 1}, "parameter_servers is 1, expected 0"),
        (horovod, {}, "expected train or script, found none"),
        (horovod, {"train": "m:f", "script": "train.py"}, "expected train or script, found both"),
        (TrainOperator, {"task_id": "t", "train": "m.f"}, "train is 'm.f', .*'module:function'"),
        (TrainOperator, {"task_id": "t"}, "expected train, found none"),
        *(
            (TrainOperator, {"task_id": "t", "train": "m:f", "stall_timeout_s": value}, "stall_timeout_s is .*above 0")
            for value in (0, -1.5, "300", float("inf"), float("nan"))
        ),
        (ingest, {"sources": {"t": "/x.csv"}, "window_end": "today"}, "window_end is 'today', .*ISO 8601"),
        (prepare, {"prepare": "m:f", "label": "y", "problem": "ranking"}, "problem is 'ranking', expected one of 'bin"),
        (prepare, {"prepare": "m:f", "label": "y", "classes": "ab"}, "classes is 'ab', expected a list of text"),
        (prepare, {"prepare": "m:f", "label": "y", "classes": [False]}, r"classes\[0\] is False, expected text, or a"),
        (
            prepare,
            {"prepare": "m:f", "label": "y", "more_labels": {"z": "ranking"}},
            r"more_labels\['z'\] is 'ranking'",
        ),
        (rollout, {"steps": (50, 20, 100)}, r"steps is \[50, 20, 100\]; expected ascending"),
        (rollout, {"limits": {"significance": 1}}, r"limits\['significance'\] is 1, expected a number above 0 and"),
        (rollout, {"limits": {"max_los_increase": 1}}, "has no field 'max_los_increase'; .*mean 'max_loss_increase'"),
        (rollout, {"limits": {"min_labels": TEMPLATE}}, r"limits\['min_labels'\] .*the argument is not templated"),
        (rollout, {"approval": {"on_timeout": "leave"}}, r"approval\['on_timeout'\] is 'leave', expected one of"),
        (rollout, {"approval": {"assigned_users": [{"id": "a"}]}}, r"\['assigned_users'\]\[0\] lacks the field 'name'"),
        (rollout, {"approval": {"on_timeout": "promote"}}, r"there is no approval\['timeout'\], so the task waits"),
        (rollout, {"approval": "yes"}, "approval is 'yes', expected True or False, or a mapping with timeout, on_time"),
        (rollout, {"polling": {"longest": timedelta(0)}}, r"polling\['longest'\] is .*, expected a timedelta above 0"),
        (skew, {"thresholds": {"x": 2}}, r"thresholds\['x'\] is 2, expected a share from 0 to 1"),
        (validate, {"on_anomaly": {"eror": "fail"}}, "a key of on_anomaly is 'eror', .*mean 'error'"),
        (PerformanceOperator, {"task_id": "t", "model_name": "m", "ages": [timedelta(2), timedelta(1)]}, "ages is"),
        (SetTrafficOperator, {"task_id": "t", "model_name": "m", "percents": {"v1": 9}}, "a key of percents is 'v1'"),
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
        prepare(task_id="prepare", prepare=TEMPLATE, engine="spark", label="y", conf={"spark.executor.cores": TEMPLATE})
        deploy(task_id="deploy", model_name=TEMPLATE, evaluation=output["evaluation"])
        deploy(task_id="late", model_name=output["name"])
        evaluate(task_id="evaluate", splits=TEMPLATE, slices=[TEMPLATE])
        PromoteModelOperator(task_id="promote", model_name="m", version="{% if 1 %}3{% endif %}")
        SetTrafficOperator(task_id="set", model_name="m", percents=output)


OPERATORS = [getattr(operators, name) for name in operators.__all__ if name.endswith("Operator")]


@pytest.mark.parametrize("operator", OPERATORS)
def test_object_of_no_type_is_refused_by_name(operator: type[HopsTask]) -> None:
    check_each_argument(operator)


def check_each_argument(operator: type[HopsTask]) -> None:
    """Asserts that an operator refuses an argument of a wrong type by its name, whichever argument it is."""
    own = [each for each in operator.__mro__ if each.__module__.startswith("airflow_hops.")]
    constructors = [inspect.unwrap(vars(each)["__init__"]) for each in own if "__init__" in vars(each)]
    hints = {name: hint for each in constructors for name, hint in get_type_hints(each).items()}
    arguments = {
        name: each for constructor in constructors for name, each in inspect.signature(constructor).parameters.items()
    }
    for name in ("return", "self", "kwargs", "params", "task_id"):
        hints.pop(name, None)
    needed = {name for name in hints if name in FIRST or arguments[name].default is inspect.Parameter.empty}
    values: dict[str, Any] = {name: FIRST.get(name, TEMPLATE) for name in needed}
    for name in (name for name, hint in hints.items() if hint is not Any):
        with pytest.raises(BadInput, match=rf"\b{name} is <object"):
            operator(task_id="t", **{**values, name: object()})


NOT_ALONE = {
    "BatchPredictOperator.model", "DeployModelOperator.ungated", "HorovodTrainOperator.script", "ReasonsOperator.model",
    "PerformanceOperator.captured", "SkewOperator.reference", "SkewOperator.current", "SkewOperator.schema",
    "SelectSegmentsOperator.version", "SkewOperator.examples", "StatisticsOperator.source", "TrainFleetOperator.source",
}  # fmt: skip
"""Arguments that exclude or need others."""
BASES: dict[str, dict[str, Any]] = {
    "DeployModelOperator": {"evaluation": TEMPLATE},
    "IngestOperator": {"sources": {"t": "/x.csv"}},
    "PrepareImagesOperator": {"sources": {"train": "/x"}, "channels": 3},
    "PrepareOperator": {"engine": "spark"},
    "SchemaOperator": {"statistics": TEMPLATE},
    "SearchOperator": {"space": "m:f"},
    "SelectSegmentsOperator": {"model": TEMPLATE},
    "StatisticsOperator": {"examples": TEMPLATE},
    "TrainFleetOperator": {"examples": TEMPLATE},
}


def check_late_arguments(operator: type[HopsTask]) -> None:
    """Asserts that each templated argument takes outputs and a mapped group's values, whole and in a mapping or list.

    Arguments that are not templated refuse them by name.
    """
    own = [each for each in operator.__mro__ if each.__module__.startswith("airflow_hops.")]
    constructors = [inspect.unwrap(vars(each)["__init__"]) for each in reversed(own) if "__init__" in vars(each)]
    hints = {name: str(hint) for each in constructors for name, hint in get_type_hints(each).items()}
    parameters = {
        name: each for constructor in constructors for name, each in inspect.signature(constructor).parameters.items()
    }
    for name in ("self", "kwargs", "params", "task_id"):
        parameters.pop(name, None)
    needed = {name for name in parameters if name in FIRST or parameters[name].default is inspect.Parameter.empty}
    values = {name: FIRST.get(name, TEMPLATE) for name in needed} | BASES.get(operator.__name__, {})
    late: list[Any] = []
    numbers = itertools.count()
    with DAG("late", schedule=None):
        values_of_tasks = task(task_id="values")(lambda: [1])()
        late += [values_of_tasks, values_of_tasks["a"]]
        task_group(group_id="mapped")(lambda each: late.append(each)).expand(each=values_of_tasks)
    for name, value in itertools.product(parameters, late):
        forms = [value]
        if name in operator.template_fields:
            key = {"sources": "train", "source": "uri", "table": "uri"}.get(name, "1")
            forms += [{key: value}] * ("Mapping" in hints[name]) + [[value]] * ("Sequence" in hints[name])
        for form in forms:
            arguments = {**values, name: form, "task_id": f"t{next(numbers)}"}
            if name in operator.template_fields and f"{operator.__name__}.{name}" not in NOT_ALONE:
                operator(**arguments)
            else:
                with contextlib.suppress(ValueError), pytest.raises(BadInput, match=name):
                    operator(**arguments)


@pytest.mark.parametrize("operator", OPERATORS)
def test_late_values_pass_where_airflow_renders_them(operator: type[HopsTask]) -> None:
    check_late_arguments(operator)


@pytest.mark.parametrize(
    ("operator", "options", "no_arguments"),
    [
        (PrepareOperator, PrepareOptions, set()),
        (
            HorovodTrainOperator,
            TrainingOptions,
            {"shipped", "tolerance", "fall_back", "any_value", "export", "champion_version"},
        ),
        (SkewOperator, SkewOptions, {"threshold", "comparator", "missing_threshold", "seed"}),
        (PerformanceOperator, PerformanceOptions, {"source", "label"}),
    ],
)
def test_options_are_arguments(operator: type[HopsTask], options: type[StepOptions], no_arguments: set[str]) -> None:
    """A field that no argument has the name of would silently keep its default."""
    arguments = {name for each in operator.__mro__ for name in inspect.signature(each.__init__).parameters}
    assert {f.name for f in fields(options) if not {f.name, f.name.removesuffix("_s")} & arguments} == no_arguments


def test_attributes_of_a_subclass_change_no_options_that_are_no_arguments() -> None:
    class Alerting(SkewOperator):
        threshold, seed = 0.5, 7

    of_each: list[Any] = [each(task_id="t", model_name="m").step_params({}) for each in (SkewOperator, Alerting)]
    assert of_each[0] == of_each[1]


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


def test_retry_policy_of_the_dag_replaces_the_default() -> None:
    own = ExceptionRetryPolicy(rules=[])
    with DAG("d", schedule=None, default_args={"retry_policy": own}):
        assert horovod(train="m:f").retry_policy is own
    assert isinstance(horovod(train="m:f").retry_policy, operators.HopsRetryPolicy)
