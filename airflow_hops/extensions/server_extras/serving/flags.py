"""Flags of the part."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_hops.serving import flag_values
from airflow_hops.serving.flags import flag


@dataclass(frozen=True)
class ExtraFlags:
    """Workers, batching (TensorFlow Serving's flags), metrics, models in stores."""

    workers: int = flag(1, "number of processes that share the ports, each with all models", flag_values.positive)
    worker_timeout_seconds: float = flag(
        10, "seconds without a sign of life after which one of them is replaced; 0 waits for ever", flag_values.seconds
    )
    enable_batching: bool = flag(False, "run waiting requests for one model as one batch")
    batching_parameters_file: str = flag("", "BatchingParameters in text format")
    enable_per_model_batching_parameters: bool = flag(
        False, "batch only models with batching_params.pbtxt in the version's folder, with those parameters"
    )
    monitoring_config_file: str = flag("", "MonitoringConfig in text format: metrics for Prometheus")
    request_series: bool = flag(
        False, "count the last hour's requests in steps of ten seconds, for charts: enables GET /v1/stats/series"
    )
    model_cache_path: str = flag(
        "", "folder for copies of versions whose base path is a URL (default: the system's temporary folder)"
    )
