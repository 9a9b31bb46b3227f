"""Runs a DAG in the Airflow of the environment, once for each configuration: ``run_dag.py <DAG> <JSON> <JSON> …``.

Says ``ready`` when there is a database, and the state of each run when it is over.
"""

from __future__ import annotations

import json
import sys

from airflow.dag_processing.dagbag import DagBag
from airflow.utils.db import initdb

if __name__ == "__main__":
    _, dag_id, *configurations = sys.argv
    initdb()
    print("ready", flush=True)
    dag = DagBag().dags[dag_id]
    for configuration in configurations:
        print("over:", dag.test(run_conf=json.loads(configuration)).state, flush=True)
