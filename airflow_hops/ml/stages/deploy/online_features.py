"""Tells the server which features of a version it looks up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.core.contract.features import ONLINE_NAME, OnlineFeatures, StoredFeatures
from airflow_hops.core.contract.properties import ModelProperties
from airflow_hops.ml.step.context import StepContext

_OPTIONS = {"defaults", "max_age_s", "timeout_s", "default_if_down"}


def with_online_features(context: StepContext, folder: Path, model: Artifact, options: Mapping[str, Any]) -> Path:
    """Returns a copy of a model's folder with ``online_features.json``.

    Args:
        context: Step with the input ``features``, examples of the training_dataset stage.
        folder: The model.
        model: Its artifact.
        options: Fields of :class:`~airflow_hops.core.contract.features.OnlineFeatures`.

    Raises:
        BadInput: the examples have no stored features, the model takes none of them, or an option is unknown.
    """
    dataset = context.input("features")
    if "stored_features" not in dataset.properties:
        raise BadInput("features is not the output of TrainingDatasetOperator: no column is from a feature store")
    if unknown := sorted(options.keys() - _OPTIONS):
        raise BadInput(f"feature_options has {unknown[0]!r}; expected {', '.join(sorted(_OPTIONS))}")
    stored = StoredFeatures.from_dict(dataset.properties["stored_features"])
    inputs = ModelProperties.of(model).inputs
    columns = {name: origin for name, origin in stored.columns.items() if inputs is None or name in inputs}
    if not columns:
        raise BadInput(f"the model takes {', '.join(inputs or ())}; features has {', '.join(stored.columns)}")
    if unknown := sorted(options.get("defaults", {}).keys() - columns.keys()):
        raise BadInput(f"feature_options: defaults has {unknown[0]!r}; the model takes {', '.join(columns)}")
    features = OnlineFeatures(stored.project, columns, **options)
    copy = context.scratch / "with_online_features"
    if not copy.exists():
        shutil.copytree(folder, copy)
        (copy / ONLINE_NAME).write_text(json.dumps(features.to_dict(), indent=1) + "\n")
    return copy
