"""Do live requests still look like the data that the serving model was trained on?

Takes the requests that the model server captured since last time, compares them with the statistics of the serving
model's own training data, and asks for a retraining when they have drifted.

The weather of one fortnight is never that of the next. What would make the model's data another season's is written
down here, of temperatures in degrees Fahrenheit.
"""

from __future__ import annotations

from airflow.sdk import DAG, Asset

from airflow_hops.operators import RequestRetrainingOperator, SkewOperator

ALLOWED = {
    "temp": ("wasserstein", 25.0),
    "dewp": ("wasserstein", 30.0),
    "precip": ("kolmogorov_smirnov", 0.3),
    "visib": ("kolmogorov_smirnov", 0.3),
}

with DAG("flights_monitoring", schedule="@daily", catchup=False, max_active_runs=1, doc_md=__doc__, tags=["hops"]):
    skew = SkewOperator(
        task_id="skew",
        model_name="flights",
        time_feature="scheduled_at",
        measures={name: measure for name, (measure, _) in ALLOWED.items()},
        thresholds={name: threshold for name, (_, threshold) in ALLOWED.items()},
    )
    RequestRetrainingOperator(task_id="request_retraining", skew=skew.output, asset=Asset("flights_drifted"))
