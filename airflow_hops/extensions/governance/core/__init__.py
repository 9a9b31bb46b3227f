"""The garbage collection, quotas (``quota_*``) and model cards (``cards``), without Airflow."""
