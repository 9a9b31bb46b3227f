"""Exports Keras models, and checks their predictions and those of the exported model on held-out rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from airflow_hops.core.artifacts.properties import SAVED_MODEL
from airflow_hops.core.artifacts.target import OUTPUTS, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.prepare.options import EVAL, TRAIN
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.ml.features.predictions import check_predictions
from airflow_hops.ml.features.serving_export import (
    PREDICT_FUNCTION,
    export_serving_model,
    outputs_taken,
    served_outputs,
)
from airflow_hops.ml.features.signature_inputs import remove_randomness
from airflow_hops.ml.models.proof import Differs, check_rows_apart, compare_rows
from airflow_hops.ml.training.session import Session
from airflow_hops.ml.training.shares import Shares
from airflow_hops.ml.training.stage.estimators import describe_keras

_CHECKED_ROWS, _CHECKED_BATCHES = 128, 8


def export_keras(model: object, session: Session) -> dict[str, object]:
    """Checks a Keras model, writes its SavedModel on rank 0, and compares the two on held-out rows.

    Returns:
        Entry of ``training.json``.

    Raises:
        BadInput: predictions are not finite, not probabilities, or differ between the two models or between batches.
    """
    source, rank, rows = session.source, session.rank, None
    if source.target is not None and (rank.number == 0 or rank.group is not None):
        rows = _predicted(model, session.data, source.target, rank.size)
    if rank.number == 0:
        inputs = _export(model, source.folder, session.output)
        if rows is None or source.target is None:
            return describe_keras(inputs)
        tolerance = session.options.tolerance
        return describe_keras(inputs, _prove(session.output / SAVED_MODEL, source.target, *rows, tolerance))
    if rank.group is not None:
        # All workers must save a mirrored model together; this copy is discarded.
        with temporary_folder("export") as folder:
            _export(model, source.folder, folder)
    return describe_keras(None)


def _predicted(model: Any, data: Shares, target: Target, ranks: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Checks a model's predictions for this rank's share of held-out rows; returns the first batch and predictions."""
    split = EVAL if data.suffice(EVAL) else TRAIN
    columns, trained_on = outputs_taken(model, data.source.outputs), dict(data.rows)
    dataset = data.dataset(split, _CHECKED_ROWS * ranks, columns=columns)
    data.rows = trained_on  # rows read here are not part of the training
    batches = []
    for features, *_ in dataset.take(_CHECKED_BATCHES):
        outputs = served_outputs(model(features, training=False), target)
        for each in target.all:
            name = target.output_prefix(each.label) + OUTPUTS[each.problem]
            check_predictions(outputs[name].numpy(), each.problem, f"split {split!r}: the model's {name}")
        batches.append((features, outputs))
    features, outputs = batches[0]
    numbers = {name: values.numpy() for name, values in outputs.items() if values.dtype != tf.string}
    return {name: features[name] for name in columns}, numbers


def _export(model: Any, examples: Path | None, output: Path) -> list[str] | None:
    """Writes ``saved_model/``: the model with the examples' transform graph, or, without examples, the model alone.

    Returns:
        Raw features that it takes; None without examples.
    """
    # TensorFlow 2.16: logs changed names and written folders, on which users cannot act.
    for name in ("absl", "tensorflow"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if examples is None:
        model.export(str(output / SAVED_MODEL))
        remove_randomness(output / SAVED_MODEL)
        return None
    return list(
        export_serving_model(output / SAVED_MODEL, examples / "transform_graph", model, examples / "features.json")
    )


def _prove(
    saved_model: Path, target: Target, features: Mapping[str, Any], trained: Mapping[str, Any], tolerance: float
) -> float:
    """Compares a SavedModel's predictions for some outputs of the transform with the trained model's."""
    loaded = tf.saved_model.load(str(saved_model))  # its functions do not keep its variables alive

    def ask(rows: object) -> dict[str, Any]:
        outputs = getattr(loaded, PREDICT_FUNCTION)(*(tf.gather(values, rows) for values in features.values()))
        return {name: outputs[name].numpy() for name in trained}

    labels = range(len(next(iter(trained.values()))))
    what, probabilities = "the exported model (saved_model)", target.probabilities
    try:
        exported = ask(labels)
        check_rows_apart(ask, exported, what, tolerance, probabilities, labels)
        return compare_rows(exported, trained, what, tolerance, probabilities, labels, lambda *_: (_GRAPH, None))
    except Differs as error:
        raise BadInput(f"{error}. {error.advice}") from error


_GRAPH = (
    "The exported model is a graph: let the model compute with operations of Keras or TensorFlow on tensors, not with "
    "Python or NumPy on their values, and depend on nothing but its inputs and weights"
)
