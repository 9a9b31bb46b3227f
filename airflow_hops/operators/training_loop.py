"""DAG that trains a model, and deploys it if all gates let it pass."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, AssetOrTimeSchedule, TaskGroup

from airflow_hops.airflow_internals.tasks import current_dag
from airflow_hops.core.extensions import LOOPS, extensions
from airflow_hops.core.names import suggestion
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.operators.base import HopsOperator, arguments_of
from airflow_hops.operators.deploy import DeployModelOperator
from airflow_hops.operators.evaluate import EvaluateOperator
from airflow_hops.operators.infra_validate import InfraValidateOperator
from airflow_hops.operators.ingest import IngestOperator
from airflow_hops.operators.prepare import PrepareOperator
from airflow_hops.operators.retraining_loop import agreed, dag_of, retraining_loop
from airflow_hops.operators.rollout import RolloutOperator
from airflow_hops.operators.schema import SchemaOperator
from airflow_hops.operators.statistics import StatisticsOperator
from airflow_hops.operators.training import HorovodTrainOperator, TrainOperator
from airflow_hops.operators.transform import TransformOperator
from airflow_hops.operators.validation import ValidateExamplesOperator
from airflow_hops.runner.arguments import BadArgument, FunctionName, check_arguments

Arguments = Mapping[str, Any]
_SHARED = ("default_args", "start_date")
"""Arguments of the training's DAG that the others have, too."""
_OTHERS = ("ingest", "statistics", "schema", "validate", "evaluate", "infra_validate", "deploy")
_OPERATORS: Mapping[str, Any] = {
    "ingest": IngestOperator,
    "prepare": PrepareOperator,
    "statistics": StatisticsOperator,
    "schema": SchemaOperator,
    "validate": ValidateExamplesOperator,
    "transform": TransformOperator,
    "train": HorovodTrainOperator,
    "evaluate": EvaluateOperator,
    "infra_validate": InfraValidateOperator,
    "deploy": DeployModelOperator,
    "rollout": RolloutOperator,
}


def training_loop(
    model_name: str,
    *,
    sources: Any,
    prepare: FunctionName | Arguments,
    label: str,
    train: FunctionName | Arguments,
    transform: FunctionName | Arguments | None = None,
    np: Any = None,
    key: str | None = None,
    time: str | None = None,
    newest: timedelta | float | None = None,
    continue_from_champion: bool = False,
    rollout: Arguments | None = None,
    policy: RetrainingPolicy | None = None,
    monitoring: Arguments | None = None,
    score: Arguments | None = None,
    **others: Any,
) -> DAG | TaskGroup:
    """Returns a DAG that trains a model from raw data, and deploys it if nothing speaks against it.

    Its tasks are ``ingest``, ``prepare``, ``statistics``, ``schema``, ``validate``, ``transform`` if configured,
    ``train``, ``evaluate``, ``infra_validate``, ``deploy`` and, if configured, ``rollout``. The validation is upstream
    of the training, and the verdicts of ``evaluate`` and ``infra_validate`` decide about the deployment. The schema
    follows the data until a model that was trained with it is deployed. ``airflow dags show`` draws the DAG.

    Within ``with DAG(...):`` the tasks are a task group of that DAG, named as the model.

    Example::

        dag = training_loop(
            "churn",
            sources={"events": Source("s3://lake/events/*.csv.gz", time_column="at")},
            prepare="churn.prepare:prepare",
            label="churned",
            key="customer",
            time="at",
            newest=timedelta(days=1),
            train="churn.model:train",
            evaluate={"minimum": {"auc": 0.7}},
            policy=RetrainingPolicy(when=Drift(consecutive=2)),
        )

    Args:
        model_name: Name of the model in MLflow's registry and on the server.
        sources: As of :class:`~airflow_hops.operators.IngestOperator`.
        prepare: Function of a module beside the DAG file, or its name, ``module:function``; or arguments of
            :class:`~airflow_hops.operators.PrepareOperator`, ``prepare`` among them.
        label: Column of the label.
        train: Function of a module beside the DAG file, or its name; or arguments of
            :class:`~airflow_hops.operators.TrainOperator`, or with ``np`` of
            :class:`~airflow_hops.operators.HorovodTrainOperator`, ``train`` among them.
        transform: The preprocessing function, or its name; or arguments of
            :class:`~airflow_hops.operators.TransformOperator`; None to train on raw features.
        np: Number of Horovod ranks; None to train in one process.
        key: Column that identifies an example.
        time: Column of the time of the prediction.
        newest: Length of the window at the end of the data that is never trained on.
        continue_from_champion: Whether ``transform`` and ``train`` have ``continue_from=model_name``, so that
            ``context.champion`` is the live model, and the transform has its constants.
        rollout: Arguments of :class:`~airflow_hops.operators.RolloutOperator`, ``{}`` for its defaults; None to leave
            a canary to a person.
        policy: When to retrain. If not None, a second DAG, ``<model_name>_monitoring``, compares each day's requests
            with the training data, and starts this DAG. It has the same ``default_args``.
        monitoring: Arguments of :func:`~airflow_hops.operators.retraining_loop` for the second DAG.
        score: For a model that scores tables, with the extension :doc:`/extensions/scoring`: makes a DAG
            ``<model_name>_scoring``. Its keys are ``rows``, the source of the rows without labels, instead of the main
            table, or sources by table; ``to``, a :class:`~airflow_hops.extensions.tables.Table` to write to; ``asset``,
            that a scored window updates, by default ``<model_name>_scored``; ``schedule``, by default ``@daily``;
            arguments of the tasks ``ingest``, ``prepare``, ``score`` and ``write``, and of the DAG. The connection of
            all tasks is by default ``hops_batch``, with which no server runs, and there is no ``infra_validate``,
            which starts one, unless its arguments are given.
        **others: Arguments of an operator by its task: ``ingest``, ``statistics``, ``schema``, ``validate``,
            ``evaluate``, ``infra_validate`` and ``deploy``. All else are arguments of the DAG; its ``dag_id`` is
            ``<model_name>_training`` by default, and its ``schedule`` the asset ``<model_name>_drifted``.

    Returns:
        The DAG, or the task group. Airflow parses only files that contain the words "airflow" and "dag".

    Raises:
        BadArgument: an argument is unknown, contradicts another, or has no effect: of the DAG within another one,
            ``monitoring`` without ``policy``, or a ``policy`` whose asset is not in the ``schedule``; or ``score``
            needs a ``key``, or an extension that is not installed.
    """
    where, of_dags = f"training_loop {model_name!r}: ", inspect.signature(DAG).parameters
    check_arguments(training_loop, {"continue_from_champion": continue_from_champion, "policy": policy}, ())
    is_asked = score is None or others.get("infra_validate") is not None
    own = {name: others.pop(name, None) or {} for name in _OTHERS}
    _check_mappings(where, {**own, "rollout": rollout, "monitoring": monitoring, "score": score})
    own |= {"prepare": _named("prepare", prepare), "train": _named("train", train)}
    optional = {"transform": transform and _named("preprocess", transform), "rollout": rollout}
    own |= {name: arguments for name, arguments in optional.items() if arguments is not None}
    if not is_asked:
        del own["infra_validate"]  # which starts a server
    named, continues = {"model_name": model_name}, {"continue_from": model_name} if continue_from_champion else {}
    shared: dict[str, Arguments] = {
        "ingest": {"sources": sources},
        "prepare": _given(label=label, key=key, time=time, newest=newest),
        "transform": continues,
        "train": {**_given(np=np), **continues},
        **dict.fromkeys(("validate", "evaluate", "deploy"), named),
    }
    for task, arguments in shared.items():
        if task in own:
            own[task] = agreed(f"{where}{task}", own[task], arguments)
    if unknown := next((name for name in others if name not in of_dags), None):
        raise BadArgument(f"{where}there is no argument {unknown!r}{_place_of(unknown, (*_OTHERS, *of_dags))}")
    if monitoring is not None and policy is None:
        raise BadArgument(f"{where}monitoring has no effect without policy; give one")
    outer = {"policy": policy, "score": score, **others}
    without_effect = [name for name, value in outer.items() if value is not None]
    made: DAG | TaskGroup
    if current_dag() is None:
        file = sys._getframe(1).f_code.co_filename
        made = _dag(model_name, policy, monitoring or {}, score, own, others, file)
    elif without_effect:
        raise BadArgument(
            f"{where}{without_effect[0]} has no effect within another DAG; give it to the DAG, or a policy to a "
            "retraining_loop"
        )
    else:
        made = TaskGroup(model_name.replace(".", "_"))
    with made:
        _add_tasks(own, HorovodTrainOperator if np is not None else TrainOperator)
    return made


def _given(**values: Any) -> Arguments:
    return {name: value for name, value in values.items() if value is not None}


def _place_of(unknown: str, known: Collection[str]) -> str:
    """Returns where an unknown argument belongs, or a known one like it."""
    tasks = [task for task, operator in _OPERATORS.items() if unknown in _arguments(operator)]
    if not tasks:
        return suggestion(unknown, known)
    function = {"prepare": "prepare", "transform": "preprocess", "train": "train"}.get(tasks[0])
    first = f"{function!r}: …, " if function else ""
    return f"; it is one of the task {' or '.join(map(repr, tasks))}: {tasks[0]}={{{first}{unknown!r}: …}}"


def _arguments(operator: type[HopsOperator]) -> set[str]:
    """Returns the arguments of an operator, without those of all operators."""
    return arguments_of(operator.__mro__[: operator.__mro__.index(HopsOperator)])


def _named(function: str, value: FunctionName | Arguments) -> Arguments:
    """Returns arguments of an operator, of which the function alone may be given."""
    return value if isinstance(value, Mapping) else {function: value}


def _check_mappings(where: str, arguments: Mapping[str, Any]) -> None:
    """Raises BadArgument for arguments of a task that are no mapping."""
    for name, value in arguments.items():
        if value is not None and not isinstance(value, Mapping):
            raise BadArgument(f"{where}{name} is {value!r}, expected arguments of an operator by name, such as {{}}")


def _dag(
    model_name: str,
    policy: RetrainingPolicy | None,
    monitoring: Arguments,
    score: Arguments | None,
    tasks: Mapping[str, Arguments],
    arguments: Arguments,
    file: str,
) -> DAG:
    """Returns the DAG without its tasks, after those that monitor the model and score tables by it."""
    watching: dict[str, Any] = {"schedule": "@daily"}
    watched: Arguments = {"own_windows": True} if tasks["prepare"].get("time") is not None else {}
    if score is not None:
        if "score" not in extensions(LOOPS):
            raise BadArgument(
                f"training_loop {model_name!r}: score needs the extension 'scoring', which this installation lacks"
            )
        loop = extensions(LOOPS)["score"].load()
        defaults = {"hops_conn_id": loop.CONN_ID, **(arguments.get("default_args") or {})}
        arguments = {**arguments, "default_args": defaults}
        shared = _given(**{name: arguments.get(name) for name in _SHARED})
        try:
            scored, silent = loop.scoring_dag(
                model_name, file, shared, tasks["ingest"]["sources"], tasks["prepare"], **score
            )
        except BadArgument as error:
            raise error.with_text(f"training_loop {model_name!r}: score: {error}") from None
        from airflow.sdk import CronTriggerTimetable  # imports croniter, which most tasks do not need

        clock = CronTriggerTimetable("@daily", timezone="UTC")  # notices that nothing is scored
        watching = {"schedule": AssetOrTimeSchedule(timetable=clock, assets=[scored])}
        watched = {**watched, "silent_after": silent}
    drifted = monitoring.get("asset", Asset(f"{model_name}_drifted"))
    own = {"dag_id": f"{model_name}_training", "max_active_runs": 1, "catchup": False, "tags": ["hops"], **arguments}
    made = dag_of(file, schedule=own.pop("schedule", [drifted]), **own)
    if policy is None:
        return made
    if drifted not in _assets(made.timetable.asset_condition):
        raise BadArgument(
            f"training_loop {model_name!r}: schedule is {arguments['schedule']!r}, so that the policy's asset "
            f"{drifted.name!r} starts nothing; leave schedule out, or give AssetOrTimeSchedule(timetable=…, "
            f"assets=[Asset({drifted.name!r})])"
        )
    _check_mappings(f"training_loop {model_name!r}: monitoring: ", {"skew": monitoring.get("skew")})
    skew = {**watched, **(monitoring.get("skew") or {})}
    common: dict[str, Any] = {name: own[name] for name in _SHARED if name in own}
    settings: dict[str, Any] = {**watching, **common, **monitoring, "asset": drifted, "skew": skew}
    retraining_loop(model_name, policy=policy, **settings).fileloc = file
    return made


def _assets(condition: Any) -> list[Any]:
    """Returns the assets of a DAG's schedule."""
    parts = getattr(condition, "objects", None)
    return [condition] if parts is None else [asset for part in parts for asset in _assets(part)]


def _add_tasks(own: Mapping[str, Arguments], trainer: type[TrainOperator] | type[HorovodTrainOperator]) -> None:
    """Adds the tasks; ``own`` has arguments by task, which replace those that this function sets.

    Without arguments there is no task ``transform``, ``infra_validate`` and ``rollout``.
    """
    raw = IngestOperator(**{"task_id": "ingest", **own["ingest"]}).output
    examples = PrepareOperator(**{"task_id": "prepare", "tables": raw, **own["prepare"]}).output
    statistics = StatisticsOperator(**{"task_id": "statistics", "examples": examples, **own["statistics"]}).output
    frozen = {"task_id": "schema", "statistics": statistics, "freeze_at": "deployment", **own["schema"]}
    described = {"statistics": statistics, "schema": SchemaOperator(**frozen).output}
    validation = ValidateExamplesOperator(**{"task_id": "validate", **described, **own["validate"]})
    first = None
    learnt = {"examples": examples, **(described if trainer is TrainOperator else {})}
    if "transform" in own:
        first = TransformOperator(**{"task_id": "transform", "examples": examples, **described, **own["transform"]})
        learnt = {"examples": first.output}
    trained = trainer(**{"task_id": "train", **learnt, **own["train"]})
    validation >> (first or trained)
    model = {"model": trained.output}
    judged = {**model, "examples": examples}
    evaluation = EvaluateOperator(**{"task_id": "evaluate", **judged, **own["evaluate"]})
    verdicts = {"evaluation": evaluation.output}
    if "infra_validate" in own:
        proof = InfraValidateOperator(**{"task_id": "infra_validate", **judged, **own["infra_validate"]})
        verdicts["infra_blessing"] = proof.output
    deployment = DeployModelOperator(**{"task_id": "deploy", **model, **verdicts, **own["deploy"]})
    if "rollout" in own:
        RolloutOperator(**{"task_id": "rollout", "deployment": deployment.output, **own["rollout"]})
