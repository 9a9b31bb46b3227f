"""A loop without a server: customers are scored each day into a table; others would score them into the same."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, CronPartitionTimetable, PartitionedAssetTimetable

from airflow_hops import RetrainingPolicy, Source, training_loop
from airflow_hops.extensions.tables import Table

FOLDER = Path(os.environ["AIRFLOW_HOME"], "nightly")
LOOPS: dict[str, dict[str, Any]] = {
    "nightly": {"schedule": timedelta(days=1), "write": {"task_id": "hand_over"}},
    "other": {},
    "noon": {"schedule": "0 12 * * *"},
}

dags = [
    training_loop(
        "nightly",
        sources={"customers": str(FOLDER / "customers.csv")},
        prepare={"prepare": "nightly_code:prepare", "problem": "binary"},
        label="left",
        key="customer",
        time="at",
        train="nightly_code:train",
        policy=RetrainingPolicy() if name == "nightly" else None,
        score={
            "rows": Source(str(FOLDER / "today.csv"), time_column="at", may_be_empty=True),
            "to": Table(conn_id="warehouse", name="scores"),
            "score": {"batch_rows": 50},
            "dag_id": f"{name}_scoring",
            **others,
        },
        dag_id=f"{name}_training",
    )
    for name, others in LOOPS.items()
]

RUNS: dict[str, Any] = {"catchup": False, "is_paused_upon_creation": False}
with DAG("nightly_report", schedule=PartitionedAssetTimetable(assets=Asset("nightly_scored")), **RUNS):
    EmptyOperator(task_id="report")

DAILY = CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin", run_offset=-1)
with DAG("nightly_partitions", schedule=DAILY, start_date=datetime(2026, 1, 1), **RUNS):
    EmptyOperator(task_id="report")
