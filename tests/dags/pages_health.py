"""Pipelines of which each has another health; nothing runs them, since the tests write what their tasks returned."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_hops.extensions.scoring import ScoreOperator
from airflow_hops.extensions.tables import WriteTableOperator
from airflow_hops.operators import DeployModelOperator, HorovodTrainOperator, RolloutOperator, SkewOperator

DAILY = "@daily"
CONNECTIONS = {
    "fraud": "hops_batch",
    "churn": "hops_batch",
    "eta": "hops_silent",
    "price": "hops_batch",
    "stock": "hops_batch",
}

for name, conn_id in CONNECTIONS.items():
    with DAG(f"{name}_training", schedule=None, is_paused_upon_creation=False) as dag:
        train = HorovodTrainOperator(task_id="train", script="horovod_script.py", hops_conn_id=conn_id)
        deploy = DeployModelOperator(
            task_id="deploy", model=train.output, model_name=name, ungated="a test", hops_conn_id=conn_id
        )
        RolloutOperator(task_id="rollout", deployment=deploy.output, steps=[50, 100], hops_conn_id=conn_id)
    globals()[dag.dag_id] = dag

for name in ("churn", "stock"):
    with DAG(f"{name}_monitor", schedule=DAILY, catchup=False, is_paused_upon_creation=False) as dag:
        SkewOperator(task_id="skew", model_name=name, hops_conn_id="hops_batch")
    globals()[dag.dag_id] = dag


class GoneOperator(SkewOperator):
    """An operator of a module that the API server cannot import."""

    __module__ = "airflow_hops.operators.gone"


with DAG("fraud_monitor", schedule=None, is_paused_upon_creation=False):
    GoneOperator(task_id="skew", model_name="fraud", hops_conn_id="hops_batch")

with DAG("stock_scoring", schedule=DAILY, catchup=False, is_paused_upon_creation=False):
    score = ScoreOperator(task_id="score", examples=None, model_name="stock", hops_conn_id="hops_batch")
    WriteTableOperator(
        task_id="write", rows=score.output, table={"conn_id": "dwh", "name": "stock"}, hops_conn_id="hops_batch"
    )
