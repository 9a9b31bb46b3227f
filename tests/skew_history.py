"""A season of comparisons in Airflow's database: one run a week, as a monitoring DAG leaves them.

The comparisons are real (:mod:`skew_windows`), and so is what a policy decides; when they ran is made up. Run in
the environment of a site: ``python tests/skew_history.py <DAG> <weeks>``.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.retraining.conditions import AnyOf, Drift
from airflow_hops.core.retraining.decision import RetrainingDecision, decide
from airflow_hops.core.retraining.policy import Budget, RetrainingPolicy
from airflow_hops.core.retraining.situation import Situation
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.runner.runtime import RuntimeHook

FIRST = datetime(2026, 7, 6, 6, tzinfo=UTC)
POLICY = RetrainingPolicy(
    when=AnyOf(Drift(), Drift(consecutive=2)), cooldown=timedelta(weeks=3), budget=Budget(6, timedelta(days=180))
)


def make_reports(dag_id: str, task_id: str, weeks: int) -> list[dict[str, Any]]:
    """The artifacts of the comparisons, of windows of the newest training data in the site's store."""
    hook = RuntimeHook()
    store = hook.store
    folder = Path(store.root.removeprefix("file://"))
    examples = min(folder.glob("flights_training/*/prepare/examples")).as_uri()
    uris = {"examples": examples, "schema": store.frozen_schema("flights_training", "schema")}
    spec = StepSpec(
        step="windows",
        entry="skew_windows:run",
        params={"dag_id": dag_id, "task_id": task_id, "run_ids": [_run_id(week) for week in range(weeks)]},
        inputs={role: (store.manifest(uri).reference(uri),) for role, uri in uris.items()},
        code_paths=(str(Path(__file__).parent),),
    )
    made: list[dict[str, Any]] = hook.run(spec, cache=False).value
    return made


def record(dag_id: str, task_id: str, asker: str, reports: list[dict[str, Any]]) -> None:
    """Writes the runs with what their tasks returned, as Airflow would have."""
    from airflow.models.dagrun import DagRun
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XCOM_RETURN_KEY, XComModel
    from airflow.timetables.base import DataInterval
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy import update

    from airflow_hops.core.web import REFUSED_KEY

    dag: Any = SerializedDagModel.get_dag(dag_id)
    previous: RetrainingDecision | None = None
    for week, report in enumerate(reports):
        run_id, time = _run_id(week), FIRST + timedelta(weeks=week)
        with create_session() as session:
            dag.create_dagrun(
                run_id=run_id, logical_date=time, data_interval=DataInterval(time, time), run_after=time,
                run_type=DagRunType.MANUAL, triggered_by=DagRunTriggeredByType.TEST, state=DagRunState.SUCCESS,
                start_date=time, session=session,
            )  # fmt: skip
            session.flush()
            previous = decide(POLICY, Situation.of(Artifact.from_dict(report), time), previous)
            refused = not previous.requested
            value = {"skew": report["uri"], "reason": previous.reason, **({"why": previous.why} if refused else {})}
            value |= {name: previous.to_dict()[name] for name in ("at", "findings", "limits")}
            value["notified"] = ["stop"] if previous.why == "budget" else []
            XComModel.set(
                key=XCOM_RETURN_KEY, value=report, task_id=task_id, dag_id=dag_id, run_id=run_id, session=session
            )
            key = REFUSED_KEY if refused else XCOM_RETURN_KEY
            XComModel.set(key=key, value=value, task_id=asker, dag_id=dag_id, run_id=run_id, session=session)
            session.execute(
                update(XComModel).where(XComModel.dag_id == dag_id, XComModel.run_id == run_id).values(timestamp=time)
            )
            states = {
                **dict.fromkeys(dag.task_ids, TaskInstanceState.SKIPPED),
                task_id: TaskInstanceState.SUCCESS,
                asker: TaskInstanceState.SKIPPED if refused else TaskInstanceState.SUCCESS,
            }
            for name, state in states.items():
                session.execute(
                    update(TaskInstance)
                    .where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.task_id == name)
                    .values(state=state, start_date=time, end_date=time + timedelta(seconds=5))
                )
            session.execute(
                update(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id).values(end_date=time)
            )


def _run_id(week: int) -> str:
    return f"manual__week-{week:02d}"


def is_recorded(dag_id: str) -> bool:
    """Whether the database has these runs already."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        return bool(DagRun.find(dag_id=dag_id, run_id=_run_id(0), session=session))


if __name__ == "__main__":
    dag_id, weeks = sys.argv[1:]
    if not is_recorded(dag_id):
        record(dag_id, "skew", "request_retraining", make_reports(dag_id, "skew", int(weeks)))
