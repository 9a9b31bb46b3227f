"""DAG that monitors a served model and requests its retraining."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import DAG, Asset, TriggerRule

from airflow_hops.core.errors import add_place
from airflow_hops.core.retraining.performance import Performance
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.operators.people import Notifier
from airflow_hops.operators.performance import PerformanceOperator
from airflow_hops.operators.retraining import RequestRetrainingOperator
from airflow_hops.operators.skew import SkewOperator
from airflow_hops.runner.arguments import BadArgument, check_arguments


def retraining_loop(
    model_name: str,
    *,
    policy: RetrainingPolicy,
    asset: Asset,
    schedule: Any,
    skew: Mapping[str, Any] | None = None,
    performance: Mapping[str, Any] | None = None,
    on_drift: Notifier | Sequence[Notifier] = (),
    on_request: Notifier | Sequence[Notifier] = (),
    on_stop: Notifier | Sequence[Notifier] = (),
    **dag: Any,
) -> DAG:
    """Returns a DAG that compares live requests with the training data and decides whether to retrain the model.

    Its tasks are ``skew``, ``performance`` if configured, and ``request_retraining``. Only one run decides at a time,
    and missed runs are not caught up.

    The training DAG should compare candidates with the champion on rows later than the training data of both:
    ``PrepareOperator(newest=…)`` holds out the end of the requested window, and ``EvaluateOperator`` compares on it.
    If that is not possible, evaluate on separate examples of a later window.

    Example::

        monitor = retraining_loop(
            "flights",
            policy=RetrainingPolicy(when=Drift(consecutive=2), cooldown=timedelta(days=7)),
            asset=Asset("flights_drifted"),
            schedule="@daily",
            skew={"time_feature": "scheduled_at"},
            on_request=SmtpNotifier(to="team@example.org", subject="flights: {{ decision.reason }}"),
        )

    Args:
        model_name: The served model.
        policy: When to retrain.
        asset: The asset on which the training DAG is scheduled.
        schedule: When to compare: a schedule of Airflow.
        skew: Other arguments of :class:`~airflow_hops.operators.SkewOperator`.
        performance: Other arguments of :class:`~airflow_hops.operators.PerformanceOperator`, whose task ``performance``
            measures the metric of the condition ``Performance`` over its window; None for no such task.
        on_drift: As of :class:`~airflow_hops.operators.RequestRetrainingOperator`.
        on_request: As of :class:`~airflow_hops.operators.RequestRetrainingOperator`.
        on_stop: As of :class:`~airflow_hops.operators.RequestRetrainingOperator`.
        **dag: Other arguments of the DAG; ``dag_id`` is ``<model_name>_monitoring`` by default.

    Returns:
        The DAG; assign it to a variable of the DAG file.

    Raises:
        BadArgument: an argument has another type, or those of a task contradict ``model_name``.
    """
    where = f"retraining_loop {model_name!r}: "
    typed = {"policy": policy, "asset": asset, "skew": skew, "performance": performance}
    check_arguments(retraining_loop, typed, ())
    named = {"model_name": model_name}
    dag_id = dag.pop("dag_id", f"{model_name}_monitoring")
    settings = {"dag_id": dag_id, "schedule": schedule, "catchup": False, "max_active_runs": 1, "tags": ["hops"], **dag}
    made = dag_of(sys._getframe(1).f_code.co_filename, **settings)
    with made:
        comparison = SkewOperator(**{"task_id": "skew", **agreed(f"{where}skew", skew or {}, named)})
        measured = None
        if performance is not None:
            conditions = [each for each in policy.when.leaves() if isinstance(each, Performance)]
            windows = [each.window for each in conditions if each.window is not None]
            arguments: dict[str, Any] = {"task_id": "performance", **({"window": windows[0]} if windows else {})}
            arguments |= agreed(f"{where}performance", performance, named)
            measured = PerformanceOperator(**arguments).output
        RequestRetrainingOperator(
            task_id="request_retraining",
            skew=comparison.output,
            performance=measured,
            asset=asset,
            policy=policy,
            on_drift=on_drift,
            on_request=on_request,
            on_stop=on_stop,
            # If only the measurement fails, the other conditions still apply.
            trigger_rule=TriggerRule.ALL_SUCCESS if measured is None else TriggerRule.ALL_DONE_MIN_ONE_SUCCESS,
        )
    return made


def agreed(task: str, own: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a task with those that a loop gives to several tasks.

    Raises:
        BadArgument: the task has another value of one; ``task`` is its name in messages.
    """
    for name, value in shared.items():
        if name in own and own[name] != value:
            raise BadArgument(
                f"{task}={{{name!r}: {own[name]!r}}} contradicts {name}={value!r} of the loop; leave one of them out"
            )
    return {**shared, **own}


def dag_of(file: str, **arguments: Any) -> DAG:
    """Returns a DAG of the file that calls a loop: Airflow takes the file that calls ``DAG()``.

    User functions are beside that file.
    """
    try:
        made = DAG(**arguments)  # noqa: AIR002
    except Exception as error:
        add_place(error)
        raise
    made.fileloc = file
    return made
