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
from world import World, context_of

from airflow_hops import (
    ModelVersionSensor,
    RequestRetrainingOperator,
    RetrainingPolicy,
    SchemaOperator,
    StatisticsOperator,
    operators,
)
from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import StepOptions
from airflow_hops.core.performance import PerformanceOptions
from airflow_hops.core.prepare.options import PrepareOptions
from airflow_hops.core.rollout.plan import RolloutPlan
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
from airflow_hops.runner.launchers.spark import SparkLauncher
from airflow_hops.runner.runtime import RuntimeHook

TEMPLATE = "{{ params.it }}"
COST = {"cost": ("costs:cost", "lower")}

deploy = partial(DeployModelOperator, task_id="t", model={}, model_name="m", evaluation={})
evaluate = partial(EvaluateOperator, task_id="t", model={}, examples={}, model_name="m")
horovod = partial(HorovodTrainOperator, task_id="t")
ingest = partial(IngestOperator, task_id="t")


performance = partial(PerformanceOperator, task_id="t", model_name="m")
prepare = partial(PrepareOperator, task_id="t", tables={})


preparing = partial(prepare, prepare="m:f", label="y")


ranks = partial(horovod, train="m:f")


request = partial(RequestRetrainingOperator, task_id="t", skew={}, asset=Asset("a"))
rollout = partial(RolloutOperator, task_id="t", deployment={})


schema = partial(SchemaOperator, task_id="t")
skew = partial(SkewOperator, task_id="t", model_name="m")


spans = partial(SkewOperator, task_id="t")


statistics = partial(StatisticsOperator, task_id="t")
validate = partial(ValidateExamplesOperator, task_id="t", statistics={}, schema={})


REFUSALS: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (deploy, {"model_name": "my model"}, "'t': model_name is 'my model', expected letters, digits, '_', '.'"),
    (deploy, {"canary_percent": 150}, "canary_percent is 150, expected a whole number from 1 to 100"),
    (deploy, {"canary_percent": True}, "canary_percent is True, expected"),
    (deploy, {"canary_percent": TEMPLATE}, "expected a whole number from 1 to 100; the argument is not templated"),
    (deploy, {"available_timeout_s": float("nan")}, "available_timeout_s is nan, expected a number above 0"),
    (deploy, {"launcher_name": "kubernets"}, "launcher_name is 'kubernets', .*; did you mean 'kubernetes'"),
    (deploy, {"evaluation": None}, "neither evaluation nor ungated is given; expected one"),
    (deploy, {"ungated": "why not"}, "evaluation and ungated are given; expected one"),
    (evaluate, {"metric": "acuracy"}, "metric is 'acuracy', .*; did you mean 'accuracy'"),
    (evaluate, {"minimum": {"delay/rmsee": 3}}, "metric is 'rmsee', .*; did you mean 'rmse'"),
    (evaluate, {"minimum": {"auc": float("nan")}}, r"'t': minimum of 'auc' is nan, expected a finite number"),
    (evaluate, {"minimum": {"minutes/auc": 60}}, r"minimum of 'auc' is 60, .* finite number, 0 to 1 \(60% is 0.6\)"),
    (evaluate, {"minimum": {"cost": float("nan")}, "metrics": COST}, "minimum of 'cost' is nan, expected a finite"),
    (evaluate, {"metrics": {"cost": ("m:f", "smaller")}}, r"metrics\['cost'\]\[1\] is 'smaller', .*'lower'"),
    (evaluate, {"splits": "eval"}, "splits is 'eval', expected a list of text, or None"),
    (horovod, {}, "expected train or script, found none"),
    (ranks, {"script": "train.py"}, "expected train or script, found both"),
    (ranks, {"np": "2"}, r"np is '2', expected a whole number, 1 or more, or \(a whole number"),
    (ranks, {"np": (4, 2)}, r"np is \(4, 2\), expected the least and the most ranks"),
    (ranks, {"np": (0, 2)}, r"np\[0\] is 0, expected a whole number, 1 or more"),
    (ranks, {"np": (1, 2), "deterministic": True}, r"np is \(1, 2\), but deterministic=True"),
    (ranks, {"np": (1, 2), "strategy": "multi_worker_mirrored"}, "but strategy='multi_worker_mirrored'"),
    (ranks, {"strategy": "horovd"}, "strategy is 'horovd', .*mean 'horovod'"),
    (ranks, {"parameter_servers": 1}, "parameter_servers is 1, expected 0"),
    (TrainOperator, {"task_id": "t", "train": "m.f"}, "train is 'm.f', .*'module:function'"),
    (TrainOperator, {"task_id": "t"}, "expected train, found none"),
    *(
        (TrainOperator, {"task_id": "t", "train": "m:f", "stall_timeout_s": value}, "stall_timeout_s is .*above 0")
        for value in (0, -1.5, "300", float("inf"), float("nan"))
    ),
    (ingest, {"sources": {"t": "/x.csv"}, "window_end": "today"}, "window_end is 'today', .*ISO 8601"),
    (performance, {"ages": [timedelta(2), timedelta(1)]}, "ages is"),
    (performance, {"captured": {}}, "captured needs labels"),
    (performance, {"period": timedelta(0)}, "period is 0 seconds; expected more than 0"),
    (performance, {"labels": {"url": "s3://raw"}}, r"sources\['labels'\] has no field 'url'"),
    (preparing, {"problem": "ranking"}, "problem is 'ranking', expected one of 'bin"),
    (preparing, {"classes": "ab"}, "classes is 'ab', expected a list of text"),
    (preparing, {"classes": [False]}, r"classes\[0\] is False, expected text, or a"),
    (preparing, {"more_labels": {"z": "ranking"}}, r"more_labels\['z'\] is 'ranking'"),
    (preparing, {"key": "k", "time": "t", "eval_percent": 100}, "eval_percent is 100, expected 0 to 99"),
    (preparing, {"newest": 14}, "newest needs a time"),
    (preparing, {"engine": "duckbd"}, "engine is 'duckbd', expected one of duckdb, spark; did you mean 'duckdb'"),
    (preparing, {"conf": {"a": 1}}, "conf is .*, but engine 'duckdb' does not use Spark; leave it"),
    *(
        (preparing, {"max_rejected": value}, f"max_rejected is {value!r}, expected a share from 0 to 1")
        for value in (-0.1, 1.5, "10%", True)
    ),
    (request, {"policy": RetrainingPolicy(), "cooldown": timedelta(1)}, "cooldown cannot be combined with policy"),
    (rollout, {"steps": (50, 20, 100)}, r"steps is \[50, 20, 100\]; expected ascending"),
    (rollout, {"limits": {"significance": 1}}, r"limits\['significance'\] is 1, expected a number above 0 and"),
    (rollout, {"limits": {"max_los_increase": 1}}, "has no field 'max_los_increase'; .*mean 'max_loss_increase'"),
    (rollout, {"limits": {"min_labels": TEMPLATE}}, r"limits\['min_labels'\] .*the argument is not templated"),
    (rollout, {"approval": {"on_timeout": "leave"}}, r"approval\['on_timeout'\] is 'leave', expected one of"),
    (rollout, {"approval": {"assigned_users": [{"id": "a"}]}}, r"\['assigned_users'\]\[0\] lacks the field 'name'"),
    (rollout, {"approval": {"on_timeout": "promote"}}, r"there is no approval\['timeout'\], so the task waits"),
    (rollout, {"approval": "yes"}, "approval is 'yes', expected True or False, or a mapping with timeout, on_time"),
    (rollout, {"polling": {"longest": timedelta(0)}}, r"polling\['longest'\] is .*, expected a timedelta above 0"),
    (schema, {}, "expected statistics to infer the schema from, or a schema's path"),
    (schema, {"schema": "x.pbtxt", "distance": 0.1}, "schema is given, so that distance has no effect"),
    (skew, {"thresholds": {"x": 2}}, r"thresholds\['x'\] is 2, expected a share from 0 to 1"),
    (skew, {"reference": {}, "current": {}}, "expected either model_name, or both"),
    (skew, {"schema": {}}, "schema requires reference and current"),
    (skew, {"examples": {}}, "examples needs identifiers"),
    (spans, {}, "expected either model_name, or both reference and current"),
    (spans, {"reference": {}}, "expected either model_name, or both reference and current"),
    (spans, {"reference": {}, "current": {}, "identifiers": ["id"]}, "identifiers, examples and time_feature require"),
    (statistics, {}, "exactly one of examples and source, found neither"),
    (statistics, {"examples": {}, "source": "/x"}, "exactly one of examples and source, found both"),
    (statistics, {"examples": {}, "key": "id"}, "label, key and time describe a source"),
    (statistics, {"source": "/x", "engine": "beam"}, "engine is 'beam', expected one of 'auto', 'local', 'spark'"),
    (statistics, {"source": "/x", "splits": ["train"]}, "splits are those of examples"),
    (statistics, {"source": "/x", "split": "../up"}, r"split is '\.\./up'"),
    (statistics, {"source": "/x", "processes": 0}, "processes is 0 with engine='auto'"),
    (statistics, {"source": "/x", "processes": 2, "engine": "spark"}, "processes is 2 with engine='spark'"),
    (validate, {"on_anomaly": {"eror": "fail"}}, "a key of on_anomaly is 'eror', .*mean 'error'"),
    (validate, {"on_anomaly": "explode"}, "on_anomaly is 'explode', expected one of 'fail', 'warn'"),
    (validate, {"on_anomaly": "branch"}, "needs the ids of the tasks"),
    (validate, {"on_anomaly": "ask", "on_timeout": "approve"}, "on_timeout is 'approve'"),
    (validate, {"split_anomalous": True}, "needs the rows of the statistics: examples="),
    (SetTrafficOperator, {"task_id": "t", "model_name": "m", "percents": {"v1": 9}}, "a key of percents is 'v1'"),
    (
        ModelVersionSensor,
        {"task_id": "t", "model_name": "m", "version": "two"},
        "is 'two', expected a version's number",
    ),
]
"""Literal arguments that an operator refuses, and its words."""
FIRST: dict[str, Any] = {"model_name": "m", "table": "iceberg://a/b", "train": "m:f", "asset": Asset("a"), "space": {}}
FIRST |= {"direction": "minimize", "height": 1, "width": 1, "channels": 1, "policies": ["p"]}
"""Arguments that take no template, or are checked before others."""


@pytest.mark.parametrize(("make", "arguments", "message"), REFUSALS)
def test_wrong_literal_is_refused_by_name(make: Callable[..., Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((BadInput, ValueError), match=message):
        make(**arguments)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bake_time_s": 60.0, "timeout_s": 30.0}, "timeout is 30 s, bake_time 60 s"),
        ({"steps": [5, 50]}, r"steps is \[5, 50\]; expected ascending whole percents from 1 on that end at 100"),
        ({"bake_time_s": [1.0, 2.0, 3.0]}, "one duration for all of the 2 steps, or one for each"),
    ],
)
def test_bad_plan_of_a_rollout_is_refused(values: dict[str, Any], message: str) -> None:
    good = {"min_requests": 1, "timeout_s": 60.0, "on_timeout": "leave", "approval": False, "keep_versions": 1}
    with pytest.raises(BadInput, match=message):
        RolloutPlan.of(**{"steps": [50, 100], "bake_time_s": 0.0, **good, "longest_wait_s": 1.0, **values})


@pytest.mark.parametrize(
    ("make", "arguments", "on_cluster"),
    [
        (statistics, {"examples": {}}, True),
        (statistics, {"examples": {}, "processes": 2}, False),
        (statistics, {"examples": {}, "engine": "local"}, False),
        (statistics, {"source": "s3://bucket/flights"}, True),
        (statistics, {"source": {"uri": "hdfs://host:8020/flights"}}, True),
        (statistics, {"source": "/data/flights"}, False),
        (statistics, {"source": "file:///data/flights"}, False),
        (statistics, {"source": "/data/flights", "engine": "spark"}, True),
        (skew, {"captured": "s3://bucket/captured"}, True),
        (skew, {"captured": "/var/captured"}, False),
        (spans, {"captured": "s3://bucket/captured", "reference": {}, "current": {}}, False),
    ],
)
def test_cluster_reads_what_its_hosts_reach(
    make: Callable[..., Any], arguments: dict[str, Any], on_cluster: bool, world: World
) -> None:
    place = {"serving_capture_path": captured} if (captured := arguments.get("captured")) else {}
    options = {name: value for name, value in arguments.items() if name != "captured"}
    world.connect("cluster", "spark", host="spark://10.0.0.5:7077").connect(spark_conn_id="cluster", **place)
    assert isinstance(make(**options).launcher(RuntimeHook()), SparkLauncher) == on_cluster
    world.connect(spark_conn_id="spark_local", **place)
    here = make(**{**options, **({"engine": "auto"} if make is statistics else {})})
    assert here.launcher(RuntimeHook()) is None
    assert make is not statistics or here.step_params({})["engine"] == "auto", "in the cache key, whatever the place"


def own_arguments(operator: type[HopsTask]) -> tuple[dict[str, Any], dict[str, inspect.Parameter], dict[str, Any]]:
    """Returns types and parameters of the arguments of an operator's own classes, and values of those it needs."""
    own = [each for each in reversed(operator.__mro__) if each.__module__.startswith("airflow_hops.")]
    constructors = [inspect.unwrap(vars(each)["__init__"]) for each in own if "__init__" in vars(each)]
    hints = {name: hint for each in constructors for name, hint in get_type_hints(each).items()}
    parameters = {name: each for one in constructors for name, each in inspect.signature(one).parameters.items()}
    for name in ("self", "kwargs", "params", "task_id"):
        parameters.pop(name, None)
    empty = inspect.Parameter.empty
    needed = [name for name, each in parameters.items() if name in FIRST or each.default is empty]
    return hints, parameters, {name: FIRST.get(name, TEMPLATE) for name in needed}


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
        evaluate(task_id="evaluate", splits=TEMPLATE, slices=[TEMPLATE], metrics=COST, minimum={"cost": 60})
        PromoteModelOperator(task_id="promote", model_name="m", version="{% if 1 %}3{% endif %}")
        SetTrafficOperator(task_id="set", model_name="m", percents=output)


OPERATORS = [getattr(operators, name) for name in operators.__all__ if name.endswith("Operator")]


@pytest.mark.parametrize("operator", OPERATORS)
def test_object_of_no_type_is_refused_by_name(operator: type[HopsTask]) -> None:
    check_each_argument(operator)


def check_each_argument(operator: type[HopsTask]) -> None:
    """Asserts that an operator refuses an argument of a wrong type by its name, whichever argument it is."""
    hints, parameters, values = own_arguments(operator)
    for name in (name for name in parameters if hints.get(name, Any) is not Any):
        with pytest.raises(BadInput, match=rf"\b{name} is <object"):
            operator(task_id="t", **{**values, name: object()})


NOT_ALONE = {
    "ScoreOperator.model", "DeployModelOperator.ungated", "HorovodTrainOperator.script", "ReasonsOperator.model",
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
    hints, parameters, values = own_arguments(operator)
    values |= BASES.get(operator.__name__, {})
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
            hint = str(hints[name])
            forms += [{key: value}] * ("Mapping" in hint) + [[value]] * ("Sequence" in hint)
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
        (PrepareOperator, PrepareOptions, ""),
        (HorovodTrainOperator, TrainingOptions, "shipped tolerance fall_back any_value export champion_version"),
        (SkewOperator, SkewOptions, "threshold comparator missing_threshold seed"),
        (PerformanceOperator, PerformanceOptions, "source label"),
    ],
)
def test_options_are_arguments(operator: type[HopsTask], options: type[StepOptions], no_arguments: str) -> None:
    """A field that no argument has the name of would silently keep its default."""
    arguments = {name for each in operator.__mro__ for name in inspect.signature(each.__init__).parameters}
    rest = {f.name for f in fields(options) if not {f.name, f.name.removesuffix("_s")} & arguments}
    assert rest == set(no_arguments.split())


def test_attributes_of_a_subclass_change_no_options_that_are_no_arguments() -> None:
    class Alerting(SkewOperator):
        threshold, seed = 0.5, 7

    of_each: list[Any] = [each(task_id="t", model_name="m").step_params({}) for each in (SkewOperator, Alerting)]
    assert of_each[0] == of_each[1]


def test_artifact_of_another_kind_is_refused() -> None:
    def artifact(kind: str) -> dict[str, str]:
        return {"uri": f"file:///{kind}", "kind": kind, "fingerprint": "f"}

    hook: Any = SimpleNamespace(settings=SimpleNamespace(launcher=None), store=ArtifactStore("/nowhere"))
    train = TrainOperator(task_id="t", train="m:f", examples=artifact("snapshot"))
    message = "input 'examples' is file:///snapshot, an artifact of kind 'snapshot'; expected 'examples' or 'transf"
    with pytest.raises(BadInput, match=message):
        train.build_spec(hook, context_of())
    with pytest.raises(BadInput, match="kind 'infra_blessing'; expected 'evaluation'"):
        deploy(model=artifact("model"), evaluation=artifact("infra_blessing")).build_spec(hook, context_of())
    train.examples = artifact("of_my_own")
    assert train.build_spec(hook, context_of()).inputs["examples"][0].kind == "of_my_own"


def test_retry_policy_of_the_dag_replaces_the_default() -> None:
    own = ExceptionRetryPolicy(rules=[])
    with DAG("d", schedule=None, default_args={"retry_policy": own}):
        assert horovod(train="m:f").retry_policy is own
    assert isinstance(horovod(train="m:f").retry_policy, operators.HopsRetryPolicy)
