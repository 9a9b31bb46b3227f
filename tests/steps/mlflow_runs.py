"""Logs trainings to MLflow as the train stage does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_hops.core.contract.artifacts import Producer
from airflow_hops.core.contract.protocol import StepSpec
from airflow_hops.core.contract.run_record import TRAIN_ENTRY
from airflow_hops.hops import StepContext
from airflow_hops.ml.tracking import TrainingRun


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
        producer, services = Producer(dag_id, f"run-{number}", "train"), {"tracking_uri": tracking_uri}
        parts = {"number": str(number)}
        spec = StepSpec("train", TRAIN_ENTRY, producer=producer, services=services, cache_key_parts=parts)
        run = TrainingRun(spec, f"training-{number}")
        run.begin(training["params"], None, None)
        for name, values in training["metrics"].items():
            for epoch, value in enumerate(values, start=1):
                run.log_metrics({name: float(value)}, epoch)
        run.finish(None, {}, {})
        for path, text in (files or {}).items():
            run._client.log_text(run._id, text, path)
