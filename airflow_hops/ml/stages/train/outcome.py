"""What comes out of the user's code: a model, a SavedModel that a script has written, or a plain value."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import keras

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.properties import SAVED_MODEL
from airflow_hops.core.contract.protocol import check_json
from airflow_hops.core.contract.splits import EVAL, TRAIN
from airflow_hops.core.contract.target import OUTPUTS
from airflow_hops.core.contract.training import OF_ANY_FRAMEWORK, TrainingOptions
from airflow_hops.ml.features.predictions import check_predictions
from airflow_hops.ml.features.transform_graph import export_serving_model, served_outputs
from airflow_hops.ml.stages.train.program import MODEL_NAME, Program
from airflow_hops.ml.training.context import TrainContext

_CHECKED_ROWS, _CHECKED_BATCHES = 128, 8
OUTPUT_VARIABLE = "HOPS_OUTPUT"
"""Environment variable with the folder that rank 0 writes to."""


def is_model(value: Any) -> bool:
    """Whether it is a Keras model, of Keras 3 or of tf_keras."""
    tf_keras = sys.modules.get("tf_keras")
    return isinstance(value, keras.Model) or (tf_keras is not None and isinstance(value, tf_keras.Model))


def check_outcome(program: Program, returned: Any, output: Path, rank: int, options: TrainingOptions) -> None:
    """Checks what came out where it was no model.

    Raises:
        BadInput: neither a SavedModel has been written, nor is it a value that a shipped function may return.
    """
    any_framework = options.strategy in OF_ANY_FRAMEWORK
    if program.shipped is not None or (options.any_value and program.script is None):
        check_json(returned, f"what {program.name} returned")
        return
    found = f"{type(returned).__module__}.{type(returned).__name__}"
    if program.script is None:
        others = "an estimator of scikit-learn, XGBoost or LightGBM, a dict of them by label, a torch.nn.Module or "
        others = others if any_framework else ""
        raise BadInput(f"train function {program.name!r} returned {found}, expected {others}a keras.Model")
    if rank == 0 and not (output / SAVED_MODEL / "saved_model.pb").is_file():
        raise BadInput(
            f"script {program.name!r} made no model: neither a keras.Model in its global {MODEL_NAME!r} (found "
            f"{found}), nor a SavedModel in ${OUTPUT_VARIABLE}/{SAVED_MODEL}"
        )


def check_answers(model: Any, context: TrainContext) -> None:
    """Checks a Keras model's predictions for held-out rows, of which this rank reads its share.

    Raises:
        BadInput: they are not finite, or not probabilities.
    """
    if context.target is None:
        return
    split = EVAL if context.can_share(EVAL) else TRAIN
    wanted, trained_on = getattr(model, "input", None), dict(context.rows)
    columns = list(wanted) if isinstance(wanted, dict) else None
    dataset = context.examples(split, _CHECKED_ROWS * context.size, columns=columns)
    context.rows = trained_on  # what is read here is no share of the training
    for features, *_ in dataset.take(_CHECKED_BATCHES):
        outputs = served_outputs(model(features, training=False), context.target)
        for each in context.target.all:
            name = context.target.output_prefix(each.label) + OUTPUTS[each.problem]
            check_predictions(outputs[name].numpy(), each.problem, f"split {split!r}: the model's {name}")


def export(model: Any, examples: Path | None, output: Path) -> list[str] | None:
    """Writes ``saved_model/``: with the transform graph of the examples inside, or of the model alone.

    Returns:
        Raw features that it takes; None for those of the model alone.
    """
    # TensorFlow announces names that it mends and folders that it writes: nothing to act on.
    for name in ("absl", "tensorflow"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if examples is None:
        model.export(str(output / SAVED_MODEL))
        return None
    return list(
        export_serving_model(output / SAVED_MODEL, examples / "transform_graph", model, examples / "features.json")
    )
