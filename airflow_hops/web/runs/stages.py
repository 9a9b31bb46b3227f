"""A DAG run, stage by stage: how each went, and what it made."""

from __future__ import annotations

from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from fastapi import APIRouter
from sqlalchemy import select

from airflow_hops.core.contract.artifacts import Producer
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, READS_TASKS
from airflow_hops.web.artifacts.from_tasks import returned_by_runs
from airflow_hops.web.artifacts.lookup import pipeline_of, run_of
from airflow_hops.web.artifacts.routes import ArtifactEntry, list_run_artifacts
from airflow_hops.web.runs.states import InstanceFacts, RunState, progress_of, skip_reasons
from airflow_hops.web.types import Model, Number

router = APIRouter(prefix="/api/dags/{dag_id}/runs/{run_id}", tags=["runs"])
_UNFINISHED = {"running", "deferred", "up_for_retry", "up_for_reschedule", "restarting"}


class StageProgress(Model):
    """The progress of a running stage."""

    share: Number
    """0 to 1; null where it does not say."""
    text: str


class StageRun(InstanceFacts):
    """An instance of one of the pipeline's tasks."""

    task_id: str
    map_index: int
    map_label: str | None
    """Label that tells a mapped instance from the others, where the DAG file says it."""
    progress: StageProgress | None


class RunStages(RunState):
    """A DAG run and the instances of the pipeline's tasks, in the DAG file's order."""

    triggered_by: str | None
    """The user, where one did."""
    stages: list[StageRun]


@router.get("/stages", dependencies=[READS_RUNS, READS_TASKS, READS_ARTIFACTS])
def list_run_stages(dag_id: str, run_id: str) -> RunStages:
    """The stages of a run, with their artifacts, including those that wait, run or failed."""
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
        run = run_of(session, dag_id, run_id)
        facts = RunState.facts(run, returned_by_runs(session, dag_id, [run_id]))
        mine = (TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id)
        instances: dict[str, list[TaskInstance]] = {}
        for each in session.scalars(select(TaskInstance).where(*mine).order_by(TaskInstance.map_index)):
            instances.setdefault(each.task_id, []).append(each)
        skipped = skip_reasons(session, dag_id, run_id)
    made: dict[tuple[str, int], list[ArtifactEntry]] = {}
    for entry in list_run_artifacts(dag_id, run_id).artifacts:
        made.setdefault((entry.task_id, entry.map_index), []).append(entry)
    stages = []
    for task in pipeline.tasks:
        for each in instances.get(task.task_id, []):
            reported = None
            if str(each.state) in {*_UNFINISHED, "failed"}:
                producer = Producer(dag_id, run_id, each.task_id, each.map_index)
                reported = progress_of(pipeline, producer, each.try_number)
            last = reported.points[-1] if reported and reported.points and str(each.state) != "failed" else None
            stages.append(
                StageRun.of(
                    each,
                    map_label=each.rendered_map_index,
                    stage=task.stage,
                    operator=task.operator,
                    model_name=task.model_name,
                    state=None if each.state is None else str(each.state),
                    started_at=each.start_date,
                    ended_at=each.end_date,
                    duration_s=each.duration,
                    progress=StageProgress(share=last.progress, text=last.text) if last else None,
                    error=reported.error if reported else None,
                    skipped=skipped.get((each.task_id, each.map_index)) if str(each.state) == "skipped" else None,
                    artifacts=made.get((each.task_id, each.map_index), []),
                )
            )
    return RunStages(**facts, triggered_by=run.triggering_user_name, stages=stages)
