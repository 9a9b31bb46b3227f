"""Are the cars that the fuel model is asked about still like those that it was trained on?"""

from __future__ import annotations

from airflow.sdk import DAG, Asset

from airflow_hops import RequestRetrainingOperator, SkewOperator

with DAG("fuel_monitoring", schedule="@daily", catchup=False, max_active_runs=1, doc_md=__doc__, tags=["hops", "fuel"]):
    skew = SkewOperator(task_id="skew", model_name="fuel", time_feature="built_at", min_rows=100)
    RequestRetrainingOperator(task_id="request_retraining", skew=skew.output, asset=Asset("fuel_drifted"))
