"""Captured Classify, Regress and MultiInference requests: features of ``tf.Example`` and results as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_hops.core.serving_api import protocol
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.serving.capture.record import CapturedCall

EXAMPLES = "examples"
"""Name of the input where examples are kept serialized."""

_KINDS = {"bytes_list": np.dtype(object), "float_list": np.dtype(np.float32), "int64_list": np.dtype(np.int64)}
_REQUESTS: dict[Method, Any] = {
    Method.CLASSIFY: protocol.ClassificationRequest,
    Method.REGRESS: protocol.RegressionRequest,
    Method.MULTI_INFERENCE: protocol.MultiInferenceRequest,
}
_RESPONSES: dict[Method, Any] = {
    Method.CLASSIFY: protocol.ClassificationResponse,
    Method.REGRESS: protocol.RegressionResponse,
    Method.MULTI_INFERENCE: protocol.MultiInferenceResponse,
}


@dataclass(frozen=True)
class Inference:
    """A request to one signature, and its answer.

    Attributes:
        signature: Signature name; empty for the default.
        rows: Number of examples.
        inputs: Features by name, each ``[rows]``; ``examples``, serialized, where a feature is no scalar.
        outputs: ``classes`` and ``scores``, each ``[rows, classes]``, or ``value``, ``[rows]``.
    """

    signature: str
    rows: int
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


def read_inferences(call: CapturedCall) -> list[Inference]:
    """Decodes a request: one inference, or one for each task of a MultiInference request.

    Raises:
        ValueError: The results are not of one number of classes.
    """
    request = _REQUESTS[call.method].FromString(call.request)
    response = _RESPONSES[call.method].FromString(call.response)
    examples = _examples(request.input)
    inputs = _features(examples) if examples else {}
    if call.method is not Method.MULTI_INFERENCE:
        signature = response.model_spec.signature_name or request.model_spec.signature_name
        outputs = _outputs(response.result)
        return [Inference(signature, len(examples) or call.rows, inputs, outputs)]
    if response.results:
        results = [
            (result.model_spec.signature_name, _outputs(getattr(result, result.WhichOneof("result"))))
            for result in response.results
        ]
    else:
        results = [(task.model_spec.signature_name, {}) for task in request.tasks]
    return [Inference(signature, len(examples) or call.rows, inputs, outputs) for signature, outputs in results]


def _examples(values: Any) -> list[Any]:
    kind = values.WhichOneof("kind")
    if kind != "example_list_with_context":
        return list(values.example_list.examples)
    merged = []
    for example in values.example_list_with_context.examples:
        whole = protocol.Example()
        whole.CopyFrom(values.example_list_with_context.context)
        whole.MergeFrom(example)
        merged.append(whole)
    return merged


def _features(examples: Sequence[Any]) -> dict[str, np.ndarray]:
    values: dict[str, list[Any]] = {}
    kinds: dict[str, str] = {}
    for row, example in enumerate(examples):
        features = example.features.feature
        for name in features:
            kind = features[name].WhichOneof("kind")
            result = getattr(features[name], kind).value if kind else []
            if len(result) != 1 or kinds.setdefault(name, kind) != kind:
                return _serialized(examples)
            values.setdefault(name, []).append(result[0])
        if any(len(column) != row + 1 for column in values.values()):
            return _serialized(examples)
    arrays: dict[str, np.ndarray] = {}
    for name, column in values.items():
        arrays[name] = np.empty(len(column), _KINDS[kinds[name]])
        arrays[name][:] = column
    return arrays


def _serialized(examples: Sequence[Any]) -> dict[str, np.ndarray]:
    array: np.ndarray = np.empty(len(examples), object)
    array[:] = [example.SerializeToString() for example in examples]
    return {EXAMPLES: array}


def _outputs(result: Any) -> dict[str, np.ndarray]:
    if "regressions" in result.DESCRIPTOR.fields_by_name:
        if not result.regressions:
            return {}
        return {"value": np.array([regression.value for regression in result.regressions], np.float32)}
    rows = result.classifications
    if not rows:
        return {}
    sizes = {len(row.classes) for row in rows}
    if len(sizes) != 1:
        raise ValueError(f"classifications of {sorted(sizes)} classes in one answer; expected one number")
    shape = (len(rows), sizes.pop())
    classes: np.ndarray = np.empty(shape, object)
    scores: np.ndarray = np.empty(shape, np.float32)
    for index, row in enumerate(rows):
        classes[index] = [results.label.encode() for results in row.classes]
        scores[index] = [results.score for results in row.classes]
    return {"classes": classes, "scores": scores}
