"""Logs trainings to MLflow as the train stage does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_hops.contract.artifacts import Producer
from airflow_hops.runtime.step.context import StepContext
from airflow_hops.runtime.tracking import TrainingRun


def log(
    context: StepContext,
    tracking_uri: str,
    dag_id: str,
    trainings: list[dict[str, Any]],
    files: Mapping[str, str] | None = None,
) -> None:
    """Logs a run for each training: its ``params``, and its ``metrics``, a list of values of each, one an epoch.

    ``files`` are logged with each, texts by path.
    """
    for number, training in enumerate(trainings):
        run = TrainingRun(tracking_uri, f"training-{number}", Producer(dag_id, f"run-{number}", "train"))
        run.begin(training["params"], None, None)
        for name, values in training["metrics"].items():
            for epoch, value in enumerate(values, start=1):
                run.log_metrics({name: float(value)}, epoch)
        run.finish(None, {}, {})
        for path, text in (files or {}).items():
            run._client.log_text(run._id, text, path)
