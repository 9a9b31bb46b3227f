"""Runs the DAG ``pages_schema`` in the Airflow of the environment: as it is, and twice with data that has changed.

Says ``ready`` when there is a database, and the state of each run when it is over.
"""

from __future__ import annotations

from airflow.dag_processing.dagbag import DagBag
from airflow.utils.db import initdb

if __name__ == "__main__":
    initdb()
    print("ready", flush=True)
    dag = DagBag().dags["pages_schema"]
    for changed in ("", "yes", "again"):
        print("over:", dag.test(run_conf={"changed": changed}).state, flush=True)
