"""What the demo's client knows of flights, as a step."""

from __future__ import annotations

from pathlib import Path

from client import INPUTS, scheduled_flights

from airflow_hops.runtime.step.context import StepContext


def write(context: StepContext, *, data: str, start: str, end: str, path: str) -> list[str]:
    """Writes the flights as the client sends them; returns the names of the model's inputs."""
    scheduled_flights(Path(data), start, end).to_parquet(path, index=False)
    return list(INPUTS)
