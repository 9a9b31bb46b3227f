"""The training loop is the DAG that one writes by hand, and what a DAG file gets wrong fails when it is parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, TaskGroup

import airflow_hops
from airflow_hops import (
    BadInput,
    DeployModelOperator,
    Drift,
    EvaluateOperator,
    HorovodTrainOperator,
    InfraValidateOperator,
    IngestOperator,
    PrepareOperator,
    RetrainingPolicy,
    SchemaOperator,
    Source,
    StatisticsOperator,
    TrainOperator,
    TransformOperator,
    ValidateExamplesOperator,
    training_loop,
)
from airflow_hops.operators.base import stage_name

CHURN: dict[str, Any] = {
    "sources": {"events": Source("/lake/events.csv", time_column="at")},
    "prepare": "churn.prepare:prepare",
    "label": "churned",
    "train": "churn.model:train",
}


POLICY = RetrainingPolicy(when=Drift(consecutive=2))


LOOP = """
from airflow_hops import Drift, RetrainingPolicy, Source, training_loop

dag = training_loop("churn", sources={"t": Source("/t.csv")}, prepare="churn.prepare:prepare", label="y", time="at",
                    train="churn.model:train", policy=RetrainingPolicy(when=Drift(consecutive=2)),
                    monitoring={"skew": {"min_rows": 500}}, default_args={"hops_conn_id": "team"})
"""


def by_hand() -> DAG:
    with DAG("churn_training", schedule=None) as dag:
        raw = IngestOperator(task_id="ingest", sources=CHURN["sources"])
        examples = PrepareOperator(
            task_id="prepare", prepare="churn.prepare:prepare", tables=raw.output, label="churned", key="customer"
        )
        statistics = StatisticsOperator(task_id="statistics", examples=examples.output)
        schema = SchemaOperator(task_id="schema", statistics=statistics.output, freeze_at="deployment")
        valid = ValidateExamplesOperator(
            task_id="validate", statistics=statistics.output, schema=schema.output, model_name="churn"
        )
        transformed = TransformOperator(
            task_id="transform", preprocess="churn.features:preprocess",
            examples=examples.output, statistics=statistics.output, schema=schema.output,
        )  # fmt: skip
        model = HorovodTrainOperator(task_id="train", train="churn.model:train", examples=transformed.output, np=2)
        inputs: dict[str, Any] = {"model": model.output, "examples": examples.output}
        evaluation = EvaluateOperator(task_id="evaluate", model_name="churn", minimum={"auc": 0.7}, **inputs)
        infra = InfraValidateOperator(task_id="infra_validate", **inputs)
        DeployModelOperator(
            task_id="deploy", model=model.output, model_name="churn", evaluation=evaluation.output,
            infra_blessing=infra.output, canary_percent=5,
        )  # fmt: skip
        valid >> transformed
    return dag


def described(dag: DAG | TaskGroup) -> dict[str, Any]:
    """Returns type, upstream tasks and own arguments of each task."""
    tasks = dag.tasks if isinstance(dag, DAG) else list(dag)
    names = {name for task in tasks for name in (*task.template_fields, *getattr(task, "param_arguments", ()))}
    return {
        task.task_id.removeprefix("churn."): (
            type(task),
            sorted(each.removeprefix("churn.") for each in task.upstream_task_ids),
            {name: repr(getattr(task, name, None)).replace("churn.", "") for name in sorted(names)},
        )
        for task in tasks
    }


def test_loop_is_the_dag_that_one_writes_by_hand() -> None:
    more: dict[str, Any] = {
        "evaluate": {"minimum": {"auc": 0.7}},
        "deploy": {"canary_percent": 5},
        "key": "customer",
        "np": 2,
    }
    made: Any = training_loop("churn", **CHURN, **more, transform="churn.features:preprocess")
    expected = described(by_hand())
    assert described(made) == expected
    assert made.fileloc == __file__
    assert [asset.name for asset in made.timetable.asset_condition.objects] == ["churn_drifted"]
    with DAG("own", schedule=None):
        group = training_loop("churn", **CHURN, **more, transform="churn.features:preprocess")
    assert isinstance(group, TaskGroup)
    assert {name: (kind, above) for name, (kind, above, _) in described(group).items()} == {
        name: (kind, above) for name, (kind, above, _) in expected.items()
    }
    raw: Any = training_loop("churn", **CHURN, rollout={})
    assert isinstance(raw.get_task("train"), TrainOperator)
    assert raw.get_task("train").upstream_task_ids == {"prepare", "statistics", "schema", "validate"}
    assert raw.get_task("rollout").upstream_task_ids == {"deploy"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"train": {"train": "churn.model:train", "epochs": 3}}, "epochs"),
        ({"continue_from_champion": "no"}, "continue_from_champion is 'no', expected True or False"),
        ({"policy": "weekly"}, "policy is 'weekly', expected"),
        ({"policy": POLICY, "monitoring": {"skew": 3}}, "monitoring: skew is 3, expected arguments of an operator"),
        (
            {"weight": "w"},
            r"there is no argument 'weight'; it is one of the task 'prepare': prepare={'prepare': …, 'we",
        ),
        ({"canary_percent": 5}, "it is one of the task 'deploy': deploy={'canary_percent': …}"),
        ({"env": {"A": "b"}}, "it is one of the task 'train': train={'train': …, 'env': …}"),  # of a base class
        *(
            (
                {task: {"model_name": "other"}},
                rf"{task}={{'model_name': 'other'}} contradicts model_name='churn' of the",
            )
            for task in ("deploy", "evaluate", "validate")
        ),
        ({"prepare": {"prepare": "churn.prepare:prepare", "label": "lost"}}, "prepare={'label': 'lost'} contradicts"),
        ({"np": 2, "train": {"train": "churn.model:train", "np": 3}}, "train={'np': 3} contradicts np=2 of the loop"),
        (
            {"continue_from_champion": True, "train": {"train": "churn.model:train", "continue_from": "other"}},
            "train={'continue_from': 'other'} contradicts continue_from='churn'",
        ),
        *(
            (
                {"policy": POLICY, "monitoring": {task: {"model_name": "other"}}},
                f"retraining_loop 'churn': {task}={{'model_name': 'other'}} contradicts model_name='churn'",
            )
            for task in ("skew", "performance")
        ),
    ],
)
def test_wrong_argument_is_named(arguments: dict[str, Any], expected: str) -> None:
    """Arguments of the loop that ``test_mistakes.py`` does not have."""
    with pytest.raises((BadInput, TypeError), match=expected):
        training_loop("churn", **{**CHURN, **arguments})
    with DAG("own", schedule=None), pytest.raises(BadInput, match="schedule has no effect within another DAG"):
        training_loop("churn", **CHURN, schedule="@daily")


def test_a_file_needs_no_more_than_the_call(tmp_path: Path) -> None:
    file = tmp_path / "loop.py"
    file.write_text(LOOP)
    for name in ("prepare", "model"):
        (tmp_path / "churn").mkdir(exist_ok=True)
        (tmp_path / "churn" / f"{name}.py").write_text("from .others import *\n")
    bag = DagBag(file)
    assert bag.import_errors == {}
    training, monitoring = bag.dags["churn_training"], bag.dags["churn_monitoring"]
    assert training.fileloc == monitoring.fileloc == str(file)
    condition: Any = training.timetable.asset_condition
    assert list(condition.objects) == monitoring.get_task("request_retraining").outlets
    skew: Any = monitoring.get_task("skew")
    assert (skew.hops_conn_id, skew.own_windows, skew.min_rows) == ("team", True, 500)


def test_a_task_has_the_name_of_its_stage() -> None:
    made = training_loop("churn", **CHURN, transform="churn.features:preprocess", np=2, rollout={})
    assert isinstance(made, DAG)
    for task in made.tasks:
        assert stage_name(type(task).__name__) == task.task_id
    assert EvaluateOperator(model={}, examples={}, model_name="churn").task_id == "evaluate"


def test_the_map_of_operators_has_all_of_them() -> None:
    page = (Path(__file__).parent.parent / "docs" / "start" / "which_operators.md").read_text()
    operators = [name for name in airflow_hops.__all__ if name.endswith("Operator") and name != "HopsOperator"]
    assert [name for name in operators if f"`{name}`" not in page] == []
