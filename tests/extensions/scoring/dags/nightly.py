"""A loop without a server: customers are scored each day into a table; another DAG would score them into the same."""

from __future__ import annotations

import os
from pathlib import Path

from airflow_hops import RetrainingPolicy, Source, training_loop
from airflow_hops.extensions.tables import Table

FOLDER = Path(os.environ["AIRFLOW_HOME"], "nightly")

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
        },
        dag_id=f"{name}_training",
    )
    for name in ("nightly", "other")
]
