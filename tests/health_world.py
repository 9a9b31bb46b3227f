"""Pipelines of every health in an Airflow database and a store, written as their tasks would have left them.

Run as a program, with the folder as its argument, it fills the Airflow of its environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from world import write_artifact

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, record_uri, write_record
from airflow_hops.core.store import ArtifactStore

FILE = Path(__file__).parent / "dags" / "pages_health.py"
SCORED_ROWS = 41_250
WHY = "out of memory in epoch 3: batch_rows is 65,536"
SUBJECT = "stands for a rollout: should the canary get all the traffic?"


def connections(root: Path, silent_port: int) -> dict[str, str]:
    """Returns the environment variables of the connections: one that scores tables, one whose server is away."""
    extra = {"store": str(root / "store"), "tracking_uri": f"sqlite:///{root}/mlflow.db"}
    silent = {**extra, "serving_rest_port": str(silent_port), "serving_base_path": str(root / "models")}
    named = {"hops_batch": {**extra, "serving_kind": "batch"}, "hops_silent": silent}
    return {
        f"AIRFLOW_CONN_{name.upper()}": json.dumps({"conn_type": "hops", "extra": fields})
        for name, fields in named.items()
    }


class HealthWorld:
    """Writes runs of the DAGs of ``dags/pages_health.py``, their artifacts, and the records of their models."""

    def __init__(self, root: Path) -> None:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
        from airflow.models.dagbag import DBDagBag
        from airflow.utils.session import create_session

        self.store = ArtifactStore(str(root / "store"))
        bag = DagBag(FILE)
        assert not bag.import_errors, bag.import_errors
        with create_session() as session:
            sync_bag_to_db(bag, "dags-folder", None, session=session)
        with create_session() as session:
            self.dags = {dag_id: DBDagBag().get_latest_version_of_dag(dag_id, session=session) for dag_id in bag.dags}

    def fill(self, now: datetime) -> None:
        """Writes what has happened until a time."""
        day = timedelta(days=1)
        for name in ("fraud", "churn", "eta", "stock"):
            self.serve(name, 2)
        self.store.write_text(record_uri(self.store, "price"), "no JSON")
        failed = self.run("fraud_training", now - day / 7, {"train": "failed", "deploy": "upstream_failed"})
        self.fail(failed, WHY)
        for name in ("eta", "price", "stock"):
            self.run(f"{name}_training", now - 4 * day)
        asking = self.run("churn_training", now - day, {"rollout": "awaiting_input"}, "running")
        self.ask(asking, now - day / 2)
        for age, (verdict, version) in enumerate([("drift", 2), ("drift", 2), ("stable", 2), ("drift", 1)]):
            self.check("churn", now - (age + 0.5) * day, verdict, version)
        self.check("stock", now - day / 3, "stable", 2)
        for age in range(3):
            self.score(now - (age + 0.25) * day, failed=7 if age == 1 else 0)
        self.plan(now + day / 4)

    def serve(self, name: str, version: int) -> None:
        """Records the champion of a model."""
        model = write_artifact(self.store, by=Producer(f"{name}_training", "first", "train"), properties={})
        record = ModelRecord(ServedVersion.of(model, version, "", 100), owners=(f"{name}_training",))
        write_record(self.store, name, record.after("deployed", version, "a test", traffic={version: 100}))

    def run(
        self, dag_id: str, at: datetime, states: Mapping[str, str] = {}, state: str = "", **returned: Artifact
    ) -> Producer:
        """Adds a run whose tasks have succeeded but for ``states``; returns its first task."""
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from airflow.utils.types import DagRunTriggeredByType, DagRunType

        run_id = f"scheduled__{at.isoformat()}"
        ended = at + timedelta(minutes=4)
        with create_session() as session:
            run = self.dags[dag_id].create_dagrun(
                run_id=run_id, logical_date=at, data_interval=(at - timedelta(days=1), at), run_after=at,
                run_type=DagRunType.SCHEDULED, triggered_by=DagRunTriggeredByType.TIMETABLE, start_date=at,
                state=state or ("failed" if "failed" in states.values() else "success"), session=session,
            )  # fmt: skip
            run.end_date = None if state == "running" else ended
            for instance in run.get_task_instances(session=session):
                instance.state = states.get(instance.task_id, "success")
                instance.start_date, instance.end_date, instance.try_number = at, ended, 1
            for task_id, artifact in returned.items():
                XComModel.set(
                    "return_value", artifact.to_dict(), dag_id=dag_id, task_id=task_id, run_id=run_id, session=session
                )
                row = session.query(XComModel).filter_by(dag_id=dag_id, run_id=run_id, task_id=task_id).one()
                row.timestamp = ended
        return Producer(dag_id, run_id, next(iter(self.dags[dag_id].task_dict)))

    def fail(self, task: Producer, why: str) -> None:
        """Leaves the error of a task."""
        progress = {"try_number": 1, "began_at": 0.0, "points": [], "error": why}
        uri = self.store.internal("_state", "progress", task.dag_id, task.run_id, task.task) + ".json"
        self.store.write_text(uri, json.dumps(progress))

    def ask(self, task: Producer, at: datetime) -> None:
        """Asks a question by the task that waits."""
        from airflow.models.hitl import HITLDetail
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session

        with create_session() as session:
            waiting = session.query(TaskInstance).filter_by(run_id=task.run_id, state="awaiting_input").one()
            options = ["Approve", "Reject"]
            session.add(HITLDetail(ti_id=waiting.id, options=options, subject=SUBJECT, params={}, created_at=at))

    def check(self, name: str, at: datetime, verdict: str, version: int) -> None:
        """Adds a run of a monitor with a comparison."""
        drifted = ["dewp", "temp", "wind", "rain"] if verdict == "drift" else []
        properties: dict[str, Any] = {
            "verdict": verdict, "drifted": drifted, "reference": {"model": name, "version": version},
            "scores": {each: [0.4, 0.1] for each in drifted},
        }  # fmt: skip
        by = Producer(f"{name}_monitor", f"scheduled__{at.isoformat()}", "skew")
        rows = {"rows_current": 4_000, "rows_reference": 9_000}
        report = {"verdict": verdict, "drifted": drifted, "features": {}, **rows}
        files = {"report.json": json.dumps(report)}
        check = write_artifact(self.store, "skew", files, by, properties=properties, metrics=rows)
        self.run(f"{name}_monitor", at, skew=check)

    def score(self, at: datetime, failed: int) -> None:
        """Adds a run that scored a window of a day, and wrote the table."""
        window = [(at - timedelta(days=1)).isoformat(), at.isoformat()]
        counts = {"rows": SCORED_ROWS, "rows_version_2": SCORED_ROWS} | (
            {"failed_rows_version_3": failed} if failed else {}
        )
        metrics = {name: float(count) for name, count in counts.items()}
        by = Producer("stock_scoring", f"scheduled__{at.isoformat()}", "score")
        properties = {"model_name": "stock", "version": 2, "window": window}
        scores = write_artifact(self.store, "predictions", by=by, properties=properties, metrics=metrics)
        written = write_artifact(self.store, "table_write", by=Producer(by.dag_id, by.run_id, "write"))
        self.run("stock_scoring", at, score=scores, write=written)

    def plan(self, at: datetime) -> None:
        """Sets the time of the next run of the DAGs that have a schedule."""
        from airflow.models.dag import DagModel
        from airflow.utils.session import create_session

        with create_session() as session:
            for dag in session.query(DagModel).filter(DagModel.dag_id.in_(self.dags)):
                dag.next_dagrun_create_after = at if dag.timetable_summary != "None" else None


if __name__ == "__main__":
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils.db import initdb

    initdb()
    DagBundlesManager().sync_bundles_to_db()
    HealthWorld(Path(sys.argv[1])).fill(datetime.now(UTC))
