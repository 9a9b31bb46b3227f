"""Do live requests still look like the data that the serving model was trained on?

Takes the requests that the model server captured since last time, compares them with the statistics of the serving
model's own training data, and asks for a retraining when they have drifted.
"""

from __future__ import annotations

from airflow.sdk import DAG, Asset

from airflow_hops.operators import RequestRetrainingOperator, SkewOperator

with DAG("flights_monitoring", schedule="@daily", catchup=False, max_active_runs=1, doc_md=__doc__, tags=["hops"]):
    skew = SkewOperator(task_id="skew", model_name="flights", time_feature="scheduled_at")
    RequestRetrainingOperator(task_id="request_retraining", skew=skew.output, asset=Asset("flights_drifted"))
