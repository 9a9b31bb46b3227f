"""Classify, Regress and MultiInference: selects the outputs of signatures, and converts them to results.

The checks and messages are those of TensorFlow Serving's ``classifier.cc``, ``regressor.cc``, ``multi_inference.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from google.protobuf import text_format

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import SignatureDefMap
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE, Signature

CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"

_INPUTS = "inputs"
_CLASSES = "classes"
_SCORES = "scores"
_OUTPUTS = "outputs"


@dataclass(frozen=True)
class Task:
    """One signature to run for one method.

    Attributes:
        method_name: ``CLASSIFY`` or ``REGRESS``.
        aliases: The outputs that the result consists of.
    """

    method_name: str
    signature: Signature
    aliases: tuple[str, ...]


@dataclass(frozen=True)
class ExampleSignatures:
    """The signatures of a model, for the methods that take examples.

    Attributes:
        by_name: The signatures.
        definitions: The same as a serialized ``SignatureDefMap``, which error messages quote.
        check_method_names: Whether the method name of a signature must match the method; TensorFlow 2 writes
            ``tensorflow/serving/predict`` into all signatures.
        defaults: Method to default signature; ``serving_default`` for methods that are missing.
    """

    by_name: Mapping[str, Signature]
    definitions: bytes
    check_method_names: bool
    defaults: Mapping[str, str] = field(default_factory=dict)

    def task(self, method_name: str, name: str) -> Task:
        """Returns the task of a Classify or Regress request; an empty name means the default signature.

        Raises:
            ServingError: The signature does not exist or does not suit the method.
        """
        key = self._key(method_name, name)
        signature = self.by_name.get(key)
        if signature is None:
            raise invalid_argument(f"No signature was found with the name: {key}")
        return Task(method_name, signature, self._output_aliases(method_name, signature))

    def tasks(self, requested: Sequence[Any]) -> list[Task]:
        """Returns the tasks of a MultiInference request from its ``InferenceTask`` messages.

        Raises:
            ServingError: The tasks differ in model, share a signature, or include one that cannot be answered.
        """
        tasks: dict[str, Task] = {}
        for wanted in requested:
            spec = wanted.model_spec
            if not spec.name:
                raise invalid_argument("Found ModelSpec with an empty model name.")
            if spec.name != requested[0].model_spec.name:
                raise invalid_argument("All ModelSpecs in a MultiInferenceRequest must access the same model name.")
            name = self._key(wanted.method_name, spec.signature_name)
            if name in tasks:
                raise invalid_argument(f"Duplicate evaluation of signature: {name}")
            if name not in self.by_name:
                raise invalid_argument(f"Requested signature not found in model graph: {name}")
            if wanted.method_name not in (CLASSIFY, REGRESS):
                raise ServingError(
                    grpc.StatusCode.UNIMPLEMENTED, f"Unsupported signature method_name: {wanted.method_name}"
                )
            tasks[name] = self.task(wanted.method_name, name)
        return list(tasks.values())

    def _key(self, method_name: str, name: str) -> str:
        return name or self.defaults.get(method_name, DEFAULT_SIGNATURE)

    def _output_aliases(self, method_name: str, signature: Signature) -> tuple[str, ...]:
        kind = "classification" if method_name == CLASSIFY else "regression"
        if self.check_method_names and signature.method_name != method_name:
            raise invalid_argument(
                f"Expected {kind} signature method_name to be {method_name}. Was: {signature.method_name}"
            )
        if len(signature.inputs) != 1:
            raise invalid_argument("Expected one input Tensor.")
        if method_name == REGRESS and len(signature.outputs) != 1:
            raise invalid_argument("Expected one output Tensor.")
        if not 1 <= len(signature.outputs) <= 2:
            raise invalid_argument(f"Expected one or two output Tensors, found {len(signature.outputs)}")
        if _INPUTS not in signature.inputs:
            raise invalid_argument(f"No {kind} inputs found in SignatureDef: {self._shown(signature)}")
        if method_name == REGRESS:
            if _OUTPUTS not in signature.outputs:
                raise invalid_argument(f"No regression outputs found in SignatureDef: {self._shown(signature)}")
            return (_OUTPUTS,)
        aliases = tuple(alias for alias in (_CLASSES, _SCORES) if alias in signature.outputs)
        if not aliases:
            raise invalid_argument(
                "Expected classification signature outputs to contain at least one of "
                f'"{_CLASSES}" or "{_SCORES}". Signature was: {self._shown(signature)}'
            )
        return aliases

    def _shown(self, signature: Signature) -> str:
        definition = SignatureDefMap.FromString(self.definitions).signature_def[signature.name]
        return str(text_format.MessageToString(definition))


def read_examples(given: Any) -> np.ndarray:
    """Returns the serialized examples of a ``SerializedInput``, each merged with the context if there is one.

    Raises:
        ServingError: The request has no examples.
    """
    if given.WhichOneof("kind") == "example_list_with_context":
        context = given.example_list_with_context.context
        # Concatenated serialized messages parse as one message, whose later fields override earlier ones.
        examples = [context + example for example in given.example_list_with_context.examples]
    else:
        examples = list(given.example_list.examples)
    if not examples:
        raise invalid_argument("Input is empty.")
    array: np.ndarray = np.empty(len(examples), object)
    array[:] = examples
    return array


def joined_signature(tasks: Sequence[Task]) -> Signature:
    """Returns one signature with the outputs of several, so that one run of the model answers all of them.

    In a TensorFlow 2 SavedModel each signature has its own input tensor. The inputs and outputs of the returned
    signature are named by their tensors.
    """
    types = {task.signature.inputs[_INPUTS]: task.signature.input_types[_INPUTS] for task in tasks}
    names = sorted({task.signature.outputs[alias] for task in tasks for alias in task.aliases})
    return Signature(
        name=f"MultiInference:{','.join(sorted(task.signature.name for task in tasks))}",
        method_name="",
        inputs={name: name for name in types},
        input_types=types,
        batched=frozenset(task.signature.inputs[alias] for task in tasks for alias in task.signature.batched),
        outputs={name: name for name in names},
    )


def fill_result(result: Any, task: Task, outputs: Mapping[str, np.ndarray], examples: int) -> None:
    """Fills an empty ``ClassificationResult`` or ``RegressionResult`` for a request with this number of examples.

    Raises:
        ServingError: The outputs have types or shapes that the method does not allow.
    """
    if task.method_name == CLASSIFY:
        classes = outputs.get(_CLASSES)
        scores = outputs.get(_SCORES)
        for alias, array, expected in ((_CLASSES, classes, "string"), (_SCORES, scores, "float")):
            if array is None:
                continue
            if array.ndim != 2:
                raise invalid_argument(f"Expected Tensor shape: [batch_size num_classes] but got {_shape(array)}")
            if tensors.type_of(array).name != expected:
                raise invalid_argument(f"Expected {alias} Tensor of {_type(expected)}. Got: {_type_of(array)}")
            if len(array) != examples:
                raise invalid_argument(f"Expected {alias} output batch size of {examples}. Got: {len(array)}")
        if classes is not None and scores is not None and classes.shape[1] != scores.shape[1]:
            raise invalid_argument(
                f"Tensors class and score should match in dim_size(1). Got {classes.shape[1]} vs. {scores.shape[1]}"
            )
        columns: dict[str, list[list[Any]]] = {}
        if classes is not None:
            try:
                columns["label"] = [[label.decode() for label in row] for row in classes.tolist()]
            except UnicodeDecodeError as error:
                raise invalid_argument(
                    f"Expected {_CLASSES} Tensor of UTF-8 text. Got: {error.object!r}; Predict returns any bytes"
                ) from None
        if scores is not None:
            columns["score"] = scores.tolist()
        for rows in zip(*columns.values(), strict=True):
            row = result.classifications.add().classes
            for values in zip(*rows, strict=True):
                row.add(**dict(zip(columns, values, strict=True)))
    else:
        _fill_regressions(result, outputs[_OUTPUTS], examples)


def _fill_regressions(result: Any, output: np.ndarray, examples: int) -> None:
    if not (output.ndim == 1 or (output.ndim == 2 and output.shape[1] == 1)):
        raise invalid_argument(
            f"Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got {_shape(output)}"
        )
    if len(output) != examples:
        raise invalid_argument(f"Input batch size did not match output batch size: {examples} vs. {len(output)}")
    if tensors.type_of(output).name != "float":
        raise invalid_argument(f"Expected output Tensor of DT_FLOAT.  Got: {_type_of(output)}")
    for value in output.ravel().tolist():
        result.regressions.add(value=value)


def _shape(array: np.ndarray) -> str:
    return f"[{','.join(map(str, array.shape))}]"


def _type(name: str) -> str:
    return f"DT_{name.upper()}"


def _type_of(array: np.ndarray) -> str:
    return _type(tensors.type_of(array).name)
