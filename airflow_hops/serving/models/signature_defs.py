"""Signatures of models other than SavedModels, and outputs with the same names in all formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_hops.core.serving_api import tensors
from airflow_hops.serving.models.inference import CLASSIFY, REGRESS
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE

PREDICT = "tensorflow/serving/predict"
CLASSIFY_SIGNATURE, REGRESS_SIGNATURE = "classify", "regress"
SIGNATURE_BY_METHOD = {CLASSIFY: CLASSIFY_SIGNATURE, REGRESS: REGRESS_SIGNATURE}

# Names of tensors; those of serving_default are its aliases.
EXAMPLES = "tf_example"
LABELS = "classify/classes"
SCORES = "classify/scores"
VALUES = "regress/outputs"

BINARY, MULTICLASS, REGRESSION = "binary", "multiclass", "regression"

_PROBABILITY = "probability"
_PROBABILITIES, _CLASS = "probabilities", "class"
_PREDICTION = "prediction"


def fill_info(info: Any, name: str, tensor_type: tensors.TensorType, shape: tuple[int, ...] | None) -> None:
    """Fills an empty ``TensorInfo``; sizes of -1 are open, and a shape of None leaves the rank open, too."""
    info.name = name
    tensors.fill_header(info, tensor_type, shape)


def add_example_signature(definitions: Any, method_name: str) -> Any:
    """Adds the signature of Classify or Regress, which takes ``tf.Example`` messages, and returns it."""
    definition = definitions.signature_def[SIGNATURE_BY_METHOD[method_name]]
    definition.method_name = method_name
    fill_info(definition.inputs["inputs"], EXAMPLES, tensors.STRING, (-1,))
    return definition


@dataclass(frozen=True)
class ProblemOutputs:
    """The outputs of a model whose problem is known; they have the same names for all such models.

    ``serving_default`` returns ``probability`` (of the second of two classes), ``probabilities`` and ``class`` (the
    most probable of several classes), or ``prediction`` (a number); a further signature is ``classify`` or ``regress``.

    Attributes:
        problem: ``binary``, ``multiclass`` or ``regression``.
        classes: Names of the classes in the order of the model's outputs; None for a regression and for labels 0 and 1.
        prefix: Prefix of the outputs' names; outputs with a prefix are not in ``classify`` and ``regress``.

    Raises:
        ValueError: Problem and classes contradict each other.
    """

    problem: str
    classes: tuple[str, ...] | None = None
    prefix: str = ""

    def __post_init__(self) -> None:
        count = None if self.classes is None else len(self.classes)
        if self.problem not in (BINARY, MULTICLASS, REGRESSION):
            raise ValueError(f"problem is {self.problem!r}; expected {BINARY}, {MULTICLASS} or {REGRESSION}")
        fits = {BINARY: count in (None, 2), MULTICLASS: count is not None and count > 1, REGRESSION: count is None}
        if not fits[self.problem]:
            raise ValueError(f"problem is {self.problem!r} and there are {count or 'no'} classes")

    def fill(self, definitions: Any) -> None:
        """Adds the outputs to a ``SignatureDefMap`` whose ``serving_default`` already has inputs."""
        outputs = definitions.signature_def[DEFAULT_SIGNATURE].outputs
        number, names = tensors.BY_NAME["float"], self._names
        for name in self._of_default:
            kind = tensors.STRING if name.endswith(_CLASS) else number
            shape = (-1, len(names)) if name.endswith(_PROBABILITIES) else (-1,)
            fill_info(outputs[name], name, kind, shape)
        if self.prefix:
            return
        if self.problem == REGRESSION:
            fill_info(add_example_signature(definitions, REGRESS).outputs["outputs"], VALUES, number, (-1,))
            return
        classify = add_example_signature(definitions, CLASSIFY)
        fill_info(classify.outputs["classes"], LABELS, tensors.STRING, (-1, len(names)))
        fill_info(classify.outputs["scores"], SCORES, number, (-1, len(names)))

    def scores(self, output: np.ndarray, rows: int) -> np.ndarray:
        """Returns the numbers to derive outputs from, float32 ``[rows]`` or, if multiclass, ``[rows, classes]``.

        Args:
            output: Output of the model: ``[rows]``, ``[rows, 1]``, or probabilities of all classes.
            rows: Number of rows of the model's input.

        Raises:
            ValueError: The output has another shape or is not numeric.
        """
        if self.problem == BINARY and output.ndim == 2 and output.shape[1] == 2:
            output = output[:, 1]
        elif self.problem != MULTICLASS and output.ndim == 2 and output.shape[1] == 1:
            output = output[:, 0]
        expected = (rows, len(self._names)) if self.problem == MULTICLASS else (rows,)
        if output.shape != expected or output.dtype.kind not in "fiu":
            raise ValueError(
                f"the model's output is {output.dtype} of shape {list(output.shape)}; expected numbers of shape "
                f"{list(expected)}, since it is {self.problem}"
            )
        numbers: np.ndarray = output.astype(np.float32, copy=False)
        return numbers

    def array(self, tensor: str, scores: np.ndarray) -> np.ndarray:
        """Returns the tensor with the name, derived from :meth:`scores`."""
        if tensor == self.prefix + _CLASS:
            likeliest: np.ndarray = self._encoded[scores.argmax(axis=1)]
            return likeliest
        if tensor == LABELS:
            return np.tile(self._encoded, (len(scores), 1))
        if tensor == SCORES and self.problem == BINARY:
            return np.stack([1 - scores, scores], axis=1)
        return scores

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that :meth:`array` returns."""
        of_examples = (VALUES,) if self.problem == REGRESSION else (LABELS, SCORES)
        return self._of_default if self.prefix else (*self._of_default, *of_examples)

    @property
    def _of_default(self) -> tuple[str, ...]:
        names = {REGRESSION: (_PREDICTION,), BINARY: (_PROBABILITY,), MULTICLASS: (_PROBABILITIES, _CLASS)}
        return tuple(self.prefix + name for name in names[self.problem])

    @property
    def _names(self) -> tuple[str, ...]:
        return self.classes or ("0", "1")

    @property
    def _encoded(self) -> np.ndarray:
        return np.array([name.encode() for name in self._names], object)
