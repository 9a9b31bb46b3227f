"""Versions that run in this process: converts messages to arrays and back, with the checks of TensorFlow Serving."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import (
    ClassificationResponse,
    Method,
    MultiInferenceResponse,
    PredictRequest,
    PredictResponse,
    RegressionResponse,
    SerializedInferenceRequest,
    SerializedMultiInferenceRequest,
)
from airflow_hops.serving.errors import check_deadline, invalid_argument
from airflow_hops.serving.models import inference
from airflow_hops.serving.models.formats import ModelOptions
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE, Call, Reply, Run, Servable, Signature


class LocalServable(Servable):
    """A version of a model that takes arrays; subclasses run the model.

    Attributes:
        signature_by_method: Method name to the default signature of Classify and Regress requests;
            ``serving_default`` for methods that are missing.
    """

    signature_by_method: Mapping[str, str] = MappingProxyType({})

    def __init__(self, model: str, version: int, path: str, signature_defs: bytes, options: ModelOptions) -> None:
        super().__init__(model, version, path, signature_defs)
        self._run_batched: Run | None = None
        if options.batcher is not None:
            self._run_batched, self.max_rows = options.batcher(self._run)
        self.computes_here = self._run_batched is None
        self._tensor_content = options.tensor_content
        self._examples = inference.ExampleSignatures(
            self.signatures, signature_defs, options.check_method_names, self.signature_by_method
        )
        self._methods: dict[Method, Callable[[Call], Reply]] = {
            Method.PREDICT: self._predict,
            Method.CLASSIFY: functools.partial(self._infer, inference.CLASSIFY, ClassificationResponse),
            Method.REGRESS: functools.partial(self._infer, inference.REGRESS, RegressionResponse),
            Method.MULTI_INFERENCE: self._multi_inference,
        }

    @abstractmethod
    def _run(
        self, signature: Signature, feeds: Sequence[np.ndarray], aliases: tuple[str, ...], deadline_s: float
    ) -> Sequence[np.ndarray]:
        """Runs the model once.

        Args:
            signature: A signature of the model, or one made of several (``inference.joined_signature``).
            feeds: An array for each of ``signature.inputs``, in that order, of the types in ``signature.input_types``.
            aliases: The requested outputs.
            deadline_s: Deadline of the client, on the clock of ``time.monotonic()``.

        Returns:
            An array for each of ``aliases``.

        Raises:
            ServingError: The model refuses the inputs.
        """

    def predict(self, inputs: Mapping[str, np.ndarray], signature: str = DEFAULT_SIGNATURE) -> dict[str, np.ndarray]:
        """Runs the model on arrays like a Predict request, without a server.

        Args:
            inputs: Alias to array, of the types of the signature.
            signature: Key of the signature.

        Raises:
            ServingError: The inputs do not match the signature, or the model refuses them.
        """
        asked = self.signature(signature)
        aliases = tuple(asked.outputs)
        return dict(zip(aliases, self._answers(asked, inputs, aliases, math.inf), strict=True))

    def answer(self, call: Call) -> Reply:
        """Answers a request."""
        check_deadline(call.deadline_s)
        try:
            return self._methods[call.method](call)
        except DecodeError as error:
            raise invalid_argument(f"The message does not parse as a {call.method.label} request: {error}") from None

    def _predict(self, call: Call) -> Reply:
        request = PredictRequest.FromString(call.message)
        signature = self.signature(request.model_spec.signature_name)
        # Check before decoding: a request can hold many names that refer to few bytes.
        _check_size(signature, request.inputs.keys())
        inputs = {alias: decode_input(alias, proto) for alias, proto in request.inputs.items()}
        aliases = _aliases(signature, request.output_filter)
        arrays = self._answers(signature, inputs, aliases, call.deadline_s)
        response = PredictResponse()
        for alias, array in zip(aliases, arrays, strict=True):
            tensors.fill_proto(response.outputs[alias], array, as_content=self._tensor_content)
        self._fill_spec(response.model_spec, signature)
        batched = {alias: value for alias, value in inputs.items() if alias in signature.batched}
        return Reply(response.SerializeToString(), count_rows(batched or inputs))

    def _infer(self, method_name: str, new_response: Callable[[], Any], call: Call) -> Reply:
        response = new_response()
        request = SerializedInferenceRequest.FromString(call.message)
        task = self._examples.task(method_name, request.model_spec.signature_name)
        examples = inference.read_examples(request.input)
        outputs = self._run_examples(task.signature, task.aliases, examples, call.deadline_s)
        inference.fill_result(response.result, task, outputs, len(examples))
        self._fill_spec(response.model_spec, task.signature)
        return Reply(response.SerializeToString(), len(examples))

    def _multi_inference(self, call: Call) -> Reply:
        request = SerializedMultiInferenceRequest.FromString(call.message)
        tasks = self._examples.tasks(request.tasks)
        examples = inference.read_examples(request.input)
        joined = inference.joined_signature(tasks)
        by_tensor = self._run_examples(joined, tuple(joined.outputs), examples, call.deadline_s)
        response = MultiInferenceResponse()
        for task in tasks:
            result = response.results.add()
            kind = "classification_result" if task.method_name == inference.CLASSIFY else "regression_result"
            outputs = {alias: by_tensor[task.signature.outputs[alias]] for alias in task.aliases}
            inference.fill_result(getattr(result, kind), task, outputs, len(examples))
            self._fill_spec(result.model_spec, task.signature)
        return Reply(response.SerializeToString(), len(examples))

    def _run_examples(
        self, signature: Signature, aliases: tuple[str, ...], examples: np.ndarray, deadline_s: float
    ) -> dict[str, np.ndarray]:
        arrays = self._answers(signature, dict.fromkeys(signature.inputs, examples), aliases, deadline_s)
        return dict(zip(aliases, arrays, strict=True))

    def _answers(
        self, signature: Signature, inputs: Mapping[str, np.ndarray], aliases: tuple[str, ...], deadline_s: float
    ) -> Sequence[np.ndarray]:
        feeds = feeds_of(signature, inputs)
        # A value for all rows is that of one request, and of an unknown rank it is not known what a row is.
        has_only_rows = bool(feeds) and signature.batched == signature.inputs.keys()
        if signature.batch_size is not None:
            arrays = self._run_parts(signature, feeds, aliases, deadline_s, signature.batch_size)
        elif self._run_batched is not None and has_only_rows:
            arrays = self._run_batched(signature, feeds, aliases, deadline_s)
        else:
            arrays = self._run(signature, feeds, aliases, deadline_s)
        values = [inputs.get(alias, feed) for alias, feed in zip(signature.inputs, feeds, strict=True)]
        if not values or not all(feed.ndim == 2 and value.ndim == 1 for feed, value in zip(feeds, values, strict=True)):
            return arrays
        # TensorFlow Serving answers [batch] with [batch], even if the signature says [batch, 1].
        return [array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array for array in arrays]

    def _run_parts(
        self, signature: Signature, feeds: Sequence[np.ndarray], aliases: tuple[str, ...], deadline_s: float, size: int
    ) -> Sequence[np.ndarray]:
        """Runs a model of a fixed batch size: with other sizes, constants in its graph may not fit."""
        has_rows = [alias in signature.batched for alias in signature.inputs]
        rows = next(len(feed) for feed, is_batch in zip(feeds, has_rows, strict=True) if is_batch)
        if not rows or not size or rows % size:
            raise invalid_argument(f"the request has {rows} rows; the model takes {size}, or a multiple of it")
        parts = [
            self._run(
                signature,
                [
                    feed[start : start + size] if is_batch else feed
                    for feed, is_batch in zip(feeds, has_rows, strict=True)
                ],
                aliases,
                deadline_s,
            )
            for start in range(0, rows, size)
        ]
        if len(parts) > 1 and not all(array.ndim and len(array) == size for part in parts for array in part):
            raise invalid_argument(f"the model takes {size} rows, and its outputs have others; ask for {size} rows")
        return [np.concatenate(arrays) if len(parts) > 1 else arrays[0] for arrays in zip(*parts, strict=True)]

    def _fill_spec(self, spec: Any, signature: Signature) -> None:
        spec.name = self.model
        spec.signature_name = signature.name
        spec.version.value = self.version


def decode_input(alias: str, proto: object) -> np.ndarray:
    """Decodes one input of a request.

    Raises:
        ServingError: The tensor is malformed.
    """
    try:
        return tensors.from_proto(proto)
    except tensors.TensorError as error:
        raise invalid_argument(f"tensor parsing error: {alias} ({error})") from None


def count_rows(inputs: Mapping[str, np.ndarray]) -> int:
    """Returns the number of rows of a request: the first dimension of its inputs, or 1 if all are scalars."""
    for array in inputs.values():
        if array.ndim:
            return len(array)
    return 1


def _names(names: Any) -> str:
    return ",".join(sorted(names))


def _check_size(signature: Signature, names: Collection[str]) -> None:
    expected = signature.inputs
    if len(names) > len(expected) or (len(names) < len(expected) and not signature.defaults):
        raise invalid_argument(
            f"input size does not match signature: {len(names)}!={len(expected)} "
            f"len({{{_names(names)}}}) != len({{{_names(expected)}}}). "
            f"Sent extra: {{{_names(set(names) - expected.keys())}}}. "
            f"Missing but required: {{{_names(expected.keys() - set(names))}}}."
        )


def feeds_of(signature: Signature, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the inputs in the order of the signature, and in its shapes; errors have TensorFlow Serving's messages.

    TensorFlow Serving does not compare shapes, so its graphs silently broadcast inputs of other shapes.

    Raises:
        ServingError: Names, types or shapes differ from the signature, or inputs from each other in rows.
    """
    expected = signature.inputs
    _check_size(signature, inputs.keys())
    feeds: list[np.ndarray] = []
    used = 0
    for alias, tensor_name in expected.items():
        value = inputs.get(alias)
        if value is None:
            value = signature.defaults.get(alias)
            if value is None:
                raise invalid_argument(
                    f"Signature input alias: {alias}(feed name: {tensor_name}) not found in request and no default "
                    f"value provided. Inputs expected to be in the request {{{_names(inputs)}}}, or default input "
                    f"alias set: {_names(signature.defaults)}"
                )
        else:
            used += 1
        expected_type = signature.input_types[alias]
        if expected_type is not None and value.dtype != expected_type.numpy:
            # NumPy 1.26: would convert silently, but TensorFlow refuses.
            raise invalid_argument(
                f"Expects arg[{len(feeds)}] to be {expected_type.name} but {tensors.type_of(value).name} is provided "
                f"(input alias: {alias})"
            )
        feeds.append(_fitted(signature, alias, value))
    if used != len(inputs):
        raise invalid_argument(
            f"Inputs contains invalid name. Used request inputs: {_names(inputs.keys() & expected.keys())}, "
            f"request input: {_names(inputs)}"
        )
    rows = {alias: len(feed) for alias, feed in zip(expected, feeds, strict=True) if alias in signature.batched}
    if len(set(rows.values())) > 1:
        listed = ", ".join(f"{alias} {count}" for alias, count in rows.items())
        raise invalid_argument(f"inputs differ in their 0th dimension: {listed}")
    return feeds


def _fitted(signature: Signature, alias: str, value: np.ndarray) -> np.ndarray:
    """Returns an input in the shape of the signature; ``[batch]`` and ``[batch, 1]`` are interchangeable."""
    shape = signature.input_shapes.get(alias)
    if shape is None:
        return value
    is_batch = alias in signature.batched
    if is_batch and value.ndim == 1 and shape[1:] == (1,):
        value = value[:, np.newaxis]
    elif is_batch and value.ndim == 2 and len(shape) == 1 and value.shape[1] == 1:
        value = value[:, 0]
    fits = [size in (-1, sent) for size, sent in zip(shape, value.shape, strict=False)]
    # The instances of a REST request have a batch dimension around a scalar, too.
    if (len(shape) == value.ndim and all(fits[is_batch:])) or (not shape and value.shape == (1,)):
        return value
    sizes = ["?" if size < 0 else str(size) for size in shape]
    sizes[:is_batch] = ["batch"] * is_batch
    raise invalid_argument(f"input {alias} has shape {list(value.shape)}; expected [{', '.join(sizes)}]")


def _aliases(signature: Signature, output_filter: Sequence[str]) -> tuple[str, ...]:
    """Returns the requested outputs: those of the filter, or all."""
    if not output_filter:
        return tuple(signature.outputs)
    seen: set[str] = set()
    for alias in output_filter:
        if alias not in signature.outputs:
            raise invalid_argument(
                f"output tensor alias not found in signature: {alias} Outputs expected to be in the set "
                f"{{{_names(signature.outputs)}}}."
            )
        if alias in seen:
            raise invalid_argument(f"duplicate output tensor alias: {alias}")
        seen.add(alias)
    return tuple(output_filter)
