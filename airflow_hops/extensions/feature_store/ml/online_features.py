"""The features of a version that the server looks up: their file, and what of it is checked at deployment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.core.contract.properties import ModelProperties
from airflow_hops.extensions.feature_store.core.stored_features import ONLINE_NAME, OnlineFeatures, StoredFeatures
from airflow_hops.ml.features.transform_graph import SIGNATURE
from airflow_hops.ml.model_server import ModelServer
from airflow_hops.ml.step.context import StepContext

_OPTIONS = {"defaults", "max_age_s", "timeout_s", "default_if_down"}


def online_features(context: StepContext, model: Artifact, options: Mapping[str, Any]) -> OnlineFeatures | None:
    """Returns the features of a model that the server is to look up; None if the step has no input ``features``.

    Args:
        context: Step, optionally with the input ``features``, examples of the training_dataset stage.
        model: The model.
        options: Fields of :class:`~airflow_hops.extensions.feature_store.core.stored_features.OnlineFeatures`.

    Raises:
        BadInput: the examples have no stored features, the model takes none of them, or an option is unknown or of a
            wrong value.
    """
    if not context.has_input("features"):
        if options:
            raise BadInput(f"feature_options has {', '.join(options)}, but there are no features to look up")
        return None
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
    for name, value in options.get("defaults", {}).items():
        if value is None or isinstance(value, str) != (columns[name].dtype == "String"):
            raise BadInput(f"feature_options: the default of {name!r} is {value!r}; expected a {columns[name].dtype}")
    for name in ("max_age_s", "timeout_s"):
        if (seconds := options.get(name, 1)) is not None and not seconds > 0:
            raise BadInput(f"feature_options: {name} is {seconds!r}; expected seconds, more than 0")
    return OnlineFeatures(stored.project, columns, **options)


def with_online_features(context: StepContext, folder: Path, features: OnlineFeatures) -> Path:
    """Returns a copy of a model's folder with ``online_features.json``."""
    copy = context.scratch / "with_online_features"
    if not copy.exists():
        shutil.copytree(folder, copy)
        (copy / ONLINE_NAME).write_text(json.dumps(features.to_dict(), indent=1) + "\n")
    return copy


def published_features(server: ModelServer, model_name: str, version: int) -> OnlineFeatures | None:
    """Returns the features that the server looks up for a version; None if there are none.

    Raises:
        BadInput: the version's file is damaged.
    """
    content = server.folders.read(model_name, version, ONLINE_NAME)
    try:
        return None if content is None else OnlineFeatures.from_dict(json.loads(content))
    except (ValueError, TypeError) as error:
        raise BadInput(f"{server.folders.uri(model_name, version)}/{ONLINE_NAME}: {error}") from error


def check_published(server: ModelServer, model_name: str, version: int, features: OnlineFeatures | None) -> None:
    """Checks that a version that was published before looks the same features up.

    Raises:
        BadInput: it does not; its folder stays as it is while the server may have loaded it.
    """
    before = published_features(server, model_name, version)
    old, new = ({} if each is None else each.to_dict() for each in (before, features))
    # As JSON, in which tuples and lists are equal
    old, new = json.loads(json.dumps(old)), json.loads(json.dumps(new))
    if differing := sorted(name for name in old | new if old.get(name) != new.get(name)):
        raise BadInput(
            f"model {model_name!r}: version {version} was published with other features to look up: "
            f"{', '.join(differing)} in {server.folders.uri(model_name, version)}/{ONLINE_NAME} would change; a "
            "published version does not change: pass the same features and feature_options, or train a new model"
        )


def check_looked_up(server: ModelServer, model_name: str, version: int, features: OnlineFeatures) -> None:
    """Checks that the server that loaded a version looks its features up, as another program would not.

    Raises:
        BadInput: clients would have to send the features.
    """
    with server.at.client() as client:
        signatures = client.metadata(model_name, version=version).signatures
    inputs = signatures[SIGNATURE].inputs if SIGNATURE in signatures else {}
    if sent := sorted(inputs.keys() & features.columns.keys()):
        raise BadInput(
            f"model {model_name!r}: {server.at}, or the server behind it, does not look up {sent[0]!r}, a feature of "
            f"{features.columns[sent[0]].view!r}: it is not 'airflow hops serve' (TensorFlow Serving has no look-ups). "
            "Serve the model with 'airflow hops serve -- --online_store=...', or deploy it without features and have "
            "clients send them"
        )
