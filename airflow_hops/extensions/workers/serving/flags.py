"""Flags of workers."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_hops.serving import flag_values
from airflow_hops.serving.flags import flag


@dataclass(frozen=True)
class WorkerFlags:
    """Processes."""

    workers: int = flag(1, "number of processes that share the ports, each with all models", flag_values.positive)
    worker_timeout_seconds: float = flag(
        10, "seconds without a sign of life after which one of them is replaced; 0 waits for ever", flag_values.seconds
    )
