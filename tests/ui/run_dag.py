"""Runs DAGs in the Airflow of the environment: for each line of standard input, ``[DAG, configuration]`` in JSON.

Says the state of each run when it is over.
"""

from __future__ import annotations

import json
import sys

from airflow.dag_processing.dagbag import DagBag

if __name__ == "__main__":
    dags = DagBag().dags
    for line in sys.stdin:
        dag_id, configuration = json.loads(line)
        print("over:", dag_id, dags[dag_id].test(run_conf=configuration).state, flush=True)
