"""Predictions of trained models of any framework, which the exported model must reproduce."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from airflow_hops.core.artifacts.target import BINARY, MULTICLASS, OUTPUTS, Target, check_heads
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.features.predictions import check_predictions
from airflow_hops.ml.models.frameworks import frameworks
from airflow_hops.ml.models.samples import Sample

Array = np.ndarray


def answers_of(model: Any, sample: Sample, framework: str, target: Target, *, checked: bool = True) -> dict[str, Array]:
    """Returns a model's predictions for the rows, by the names of the served outputs.

    Args:
        model: The model, or one for each label by name; one model may return a dict by label, with other
            arrays ``[batch, …]`` by other names.
        sample: The rows.
        framework: The framework that it was trained with.
        target: Target of the model.
        checked: Whether predictions must be finite, and probabilities between 0 and 1.

    Returns:
        float64: for a label, the probability of the second class, those of all classes, or a number; other outputs
        unchanged.

    Raises:
        BadInput: the model cannot predict that, a label has no prediction, or a model's name is not a label.
    """
    by_label = isinstance(model, Mapping)
    predictions: Any = model if by_label else _ask(model, sample, framework, target)
    whose = "the train function" if by_label else type(model).__name__
    heads = check_heads(predictions, target, whose)
    if heads is None:
        return {OUTPUTS[target.problem]: _scores(model, predictions, sample, target, checked)}
    answers = {}
    for each in target.all:
        head, served = heads[each.label], target.output_prefix(each.label) + OUTPUTS[each.problem]
        try:
            answer = _ask(head, sample, framework, each) if by_label else head
            answers[served] = _scores(head if by_label else model, answer, sample, each, checked)
        except BadInput as error:
            raise BadInput(f"label {each.label!r}: {error}") from None
    labels = [each.label for each in target.all]
    for name in (name for name in heads if name not in labels):
        if by_label:
            raise BadInput(f"{whose} returned a model for {name!r}; the labels are {', '.join(map(repr, labels))}")
        if name in answers:
            raise BadInput(f"{whose} gives {name!r}, the name of an output that is served for a label; rename it")
        if not heads[name].ndim or len(heads[name]) != len(sample.labels):
            raise BadInput(f"{whose} gives {name!r} of shape {list(heads[name].shape)}; expected [rows, …]")
        answers[name] = heads[name]
    return answers


def _ask(model: object, sample: Sample, framework: str, target: Target) -> Any:
    try:
        return frameworks()[framework].predict(model, sample, target)
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{type(model).__name__} does not predict for the rows of the sample: {error}") from error


def _scores(model: object, predictions: object, sample: Sample, target: Target, checked: bool) -> Array:
    scores = np.asarray(predictions, dtype=np.float64)
    if scores.ndim == 2 and scores.shape[1] == 1:
        scores = scores[:, 0]
    if target.problem == BINARY and scores.ndim == 2 and scores.shape[1] == 2:
        scores = scores[:, 1]
    rows = len(sample.labels)
    expected = (rows, len(target.classes or ())) if target.problem == MULTICLASS else (rows,)
    if scores.shape != expected:
        raise BadInput(
            f"{type(model).__name__} gives {list(scores.shape)} for {rows} rows; expected {list(expected)}, since the "
            f"problem is {target.problem}"
        )
    if checked:
        check_predictions(scores, target.problem, f"the output of {type(model).__name__}")
    return scores
