"""Compares the model of a run with that of its reproduction: weights bit for bit, or else predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.core.contract.prepare import EVAL
from airflow_hops.core.contract.properties import SAVED_MODEL, ExamplesProperties
from airflow_hops.core.contract.target import REGRESSION
from airflow_hops.ml.metrics.scoring import ServedModel, score
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.step.context import StepContext

_OWN_TENSORS = ("_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter/.ATTRIBUTES/VARIABLE_VALUE")


def run(context: StepContext, *, weights_decide: bool) -> dict[str, Any]:
    """Compares the models in the roles ``recorded`` and ``reproduced``.

    Args:
        context: The step.
        weights_decide: Skip predictions if weights are identical; valid if code and libraries are the same.

    Returns:
        ``weights``: ``identical`` and, if the format allows, ``tensors`` (their number) and ``difference`` (the largest
        between two numbers; None if shapes differ). ``predictions`` or None: ``rows`` of the eval split and
        ``difference`` (the largest between two predictions; for a regression in standard deviations), or ``why`` there
        are none.
    """
    recorded, reproduced = (model_folder(context.store, context.input(role)) for role in ("recorded", "reproduced"))
    weights = compare_weights(recorded, reproduced)
    if weights["identical"] and weights_decide:
        return {"weights": weights, "predictions": None}
    return {"weights": weights, "predictions": _compare_predictions(context, recorded, reproduced)}


def compare_weights(one: Path, other: Path) -> dict[str, Any]:
    """Compares two models of one format by their weights."""
    if one.name != other.name:
        return {"identical": False}
    if one.name != SAVED_MODEL:
        return {"identical": _contents(one) == _contents(other)}
    first, second = _tensors(one), _tensors(other)
    pairs = [(first[name], second[name]) for name in first if name in second]
    if first.keys() != second.keys() or any(a.shape != b.shape or a.dtype != b.dtype for a, b in pairs):
        return {"identical": False, "tensors": len(first), "difference": None}
    numbers = [(a, b) for a, b in pairs if a.dtype.kind in "fiu" and a.size]
    return {
        "identical": all(a.tobytes() == b.tobytes() if a.dtype != object else (a == b).all() for a, b in pairs),
        "tensors": len(first),
        "difference": max((float(np.abs(a.astype(float) - b.astype(float)).max()) for a, b in numbers), default=0.0),
    }


def _tensors(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
    names = sorted(set(reader.get_variable_to_shape_map()) - set(_OWN_TENSORS))
    assets = {f"assets/{name}": np.asarray(content, object) for name, content in _contents(folder / "assets").items()}
    return {name: np.asarray(reader.get_tensor(name)) for name in names} | assets


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def _compare_predictions(context: StepContext, recorded: Path, reproduced: Path) -> dict[str, Any]:
    try:
        if not context.has_input("examples"):
            return {"why": "the run had no examples to predict"}
        examples = context.input("examples")
        # Models take raw examples, so transformed examples are replaced by their raw ones.
        examples = next(iter(context.store.manifest(examples.uri).inputs.get("examples", ())), examples)
        data = ExamplesProperties.of(context.store.manifest(examples.uri))
        files = sorted((context.store.local(examples) / EVAL).glob("*.parquet"))
        if not files or data.label is None:
            return {"why": f"its examples have no split {EVAL!r}"}
        models = {"recorded": ServedModel(recorded), "reproduced": ServedModel(reproduced)}
        classes = len(data.classes or ()) or None
        result = score(models, files, data.label, classes=classes, split=EVAL).predictions
    except HopsError as error:
        return {"why": str(error)}
    before, after = result["recorded"], result["reproduced"]
    if before.shape != after.shape:
        return {"why": f"one predicts {list(before.shape)}, the other {list(after.shape)}"}
    scale = float(before.std()) if models["recorded"].problem == REGRESSION else 1.0
    difference = largest_difference(before, after)
    return {"rows": len(before), "difference": difference / scale if scale > 0 else difference}


def largest_difference(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> float:
    """Returns the largest difference of two arrays of one shape; NaN in both is 0, in one infinite."""
    differing = (before != after) & ~(np.isnan(before) & np.isnan(after))
    largest = float(np.abs(before[differing] - after[differing]).max(initial=0.0))
    return largest if np.isfinite(largest) else np.inf
