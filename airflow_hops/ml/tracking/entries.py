"""Parameters and metrics of a model, in MLflow's form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.json_files import read_json
from airflow_hops.core.redaction import masked

_PARAM_CHARS = 6000
"""Maximum length of a parameter's value in MLflow."""


def read_training(folder: Path) -> dict[str, object]:
    """Reads the training record of a model artifact; empty without a record."""
    try:
        value = read_json(folder / "training.json")
    except FileNotFoundError:
        return {}
    return value if isinstance(value, dict) else {}


def params_of(model: Artifact, training: Mapping[str, object]) -> dict[str, str]:
    """Returns all entries of the training record except series, and the window, label and features of the model."""

    def is_series(value: object) -> bool:
        if isinstance(value, Mapping):
            return bool(value) and all(isinstance(item, list | Mapping) for item in value.values())
        return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)

    values = {
        **{name: value for name, value in training.items() if not is_series(value)},
        **{name: model.properties[name] for name in ("window", "label", "features") if name in model.properties},
    }
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}.{key}": param_text(item) for key, item in value.items()})
        else:
            flat[name] = param_text(value)
    return {entry_name(name): value for name, value in flat.items()}


def lineage_tags(model: Artifact) -> dict[str, str]:
    """Returns the tags that link a run or a version to the store."""
    trained = ModelProperties.of(model)
    return {
        "hops.model": model.uri,
        "hops.fingerprint": model.fingerprint,
        "hops.statistics": trained.statistics or "",
        "hops.schema": trained.schema or "",
    }


def log_params(client: Any, run_id: object, params: Mapping[str, str]) -> None:
    """Logs any number of parameters, without credentials."""
    from mlflow.entities import Param

    values = [Param(name, value) for name, value in masked(params).items()]
    for first in range(0, len(values), 100):  # MLflow 3.17: limit for one call
        client.log_batch(run_id, params=values[first : first + 100])


def metrics_of(
    model: Artifact, training: Mapping[str, object], evaluation: Artifact | None
) -> list[tuple[str, float, int]]:
    """Returns name, value and step of the metrics of each epoch, then of those of the model and of the evaluation."""
    metrics = [
        (entry_name(name), float(value), int(figures.get("epoch", position)))
        for position, figures in enumerate(_epochs(training), start=1)
        for name, value in figures.items()
        if (isinstance(value, int | float) and not isinstance(value, bool)) and name != "epoch"
    ]
    metrics += [(entry_name(f"model.{name}"), float(value), 0) for name, value in model.metrics.items()]
    if evaluation is not None:
        metrics += evaluation_metrics(evaluation)
    return metrics


def evaluation_metrics(evaluation: Artifact) -> list[tuple[str, float, int]]:
    """Returns name, value and step of the metrics of an evaluation; ``evaluation.blessed`` (1 or 0) is its verdict."""
    blessed = evaluation.properties.get("blessed")
    verdict = {"blessed": blessed} if isinstance(blessed, bool) else {}
    return [
        (entry_name(f"evaluation.{name}"), float(value), 0) for name, value in {**evaluation.metrics, **verdict}.items()
    ]


def log_metrics(client: Any, run_id: str, metrics: Sequence[tuple[str, float, int]], at_ms: int) -> None:
    """Logs any number of metrics, each with its step."""
    from mlflow.entities import Metric

    values = [Metric(name, value, at_ms, step) for name, value, step in metrics]
    for first in range(0, len(values), 1000):  # MLflow 3.17: limit for one call
        client.log_batch(run_id, metrics=values[first : first + 1000])


def _epochs(training: Mapping[str, object]) -> list[Mapping[str, Any]]:
    """Returns the metrics of each epoch, from a list of mappings or, as in Keras's ``History``, a mapping of lists."""
    for name in ("epochs", "history"):
        value = training.get(name)
        if isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
            return value
        if isinstance(value, Mapping) and value and all(isinstance(series, list) for series in value.values()):
            length = max(len(series) for series in value.values())
            return [
                {key: series[index] for key, series in value.items() if index < len(series)} for index in range(length)
            ]
    return []


def entry_name(name: str) -> str:
    """Replaces characters that MLflow does not allow in names with underscores."""
    return "".join(char if char.isalnum() or char in "_-./ " else "_" for char in name)


def param_text(value: object) -> str:
    """Returns a parameter's value as text, cut to MLflow's limit."""
    return (value if isinstance(value, str) else json.dumps(value))[:_PARAM_CHARS]
