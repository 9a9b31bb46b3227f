"""The way of a request through the server: as a Predict request of TensorFlow Serving's API, whatever it came in.

Split, limits, capture, observers and counts so do not depend on the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.core.serving_api.tensors import STRING
from airflow_hops.extensions.open_inference.serving.datatypes import Declared, datatype_of, fill_raw
from airflow_hops.serving.errors import invalid_argument
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE, Call, Servable
from airflow_hops.serving.request_handler import RequestTarget
from airflow_hops.serving.request_memory import NARROW, NARROW_BYTES, Reservation

# Parameters of other servers' extensions, with which the answer would be another.
_REFUSED = ("sequence_id", "shared_memory_region", "classification")
# Each captured row has the id; in other APIs the limits of headers bound it.
_MOST_ID_CHARS = 1024
# As measured, from the request to the answer; in binary form, the size of a short string tells little of it.
_STRING_BYTES = 200


def target_of(model: str, version: str | None) -> RequestTarget:
    """Returns the target of a request; a version that is not a number is a label.

    Raises:
        ServingError: The version is not an int64.
    """
    if not version:
        return RequestTarget(model)
    if not (version.isascii() and version.isdigit()):
        return RequestTarget(model, label=version)
    if len(version) > 19 or int(version) >= 2**63:
        raise invalid_argument(f"version is {version[:50]}; expected a number below 2^63, or a label")
    return RequestTarget(model, int(version))


def check_parameters(owner: str, parameters: Mapping[str, object]) -> None:
    """Raises ServingError if there is a parameter that would change the answer, and is not supported."""
    for name in parameters:
        if name in _REFUSED:
            raise invalid_argument(f"{owner} has the parameter {name}, which this server does not support")


def check_id(request_id: str) -> None:
    """Raises ServingError if a request's id is too long."""
    if len(request_id) > _MOST_ID_CHARS:
        raise invalid_argument(f"id has {len(request_id)} characters; expected {_MOST_ID_CHARS} or less")


class PredictMessage:
    """A Predict request in the making.

    Args:
        target: The target of the request.
        servable: The selected version.
        signature: Signature name; empty for the default.
        memory: Accounts for strings and short numbers in binary form.

    Raises:
        ServingError: The version does not have the signature.
    """

    def __init__(self, target: RequestTarget, servable: Servable, signature: str, memory: Reservation) -> None:
        self._memory = memory
        self._types = servable.signature(signature).input_types
        self._message = protocol.PredictRequest()
        target.fill(self._message.model_spec)
        self._message.model_spec.signature_name = signature

    def add(self, declared: Declared) -> Any:
        """Adds an input, and returns its ``TensorProto``, which lacks only the values.

        Raises:
            ServingError: The type differs from that of the signature, or the input was added before.
        """
        name, tensor_type = declared.name, declared.tensor_type
        expected = self._types.get(name, tensor_type)
        if expected is not tensor_type:
            expected_name = datatype_of(f"input {name}", expected)
            raise invalid_argument(f"input {name} is {declared.datatype}; expected {expected_name}")
        tensor = self._message.inputs[name]
        if tensor.dtype:
            raise invalid_argument(f"input {name} is there twice; expected it once")
        tensors.fill_header(tensor, tensor_type, declared.shape)
        return tensor

    def add_raw(self, declared: Declared, content: bytes, source: str) -> None:
        """Adds an input in binary form, as :func:`~.datatypes.fill_raw` does.

        Raises:
            ServingError: As of that and of :meth:`add`; or the strings take more memory than there is.
        """
        tensor = self.add(declared)
        if declared.tensor_type is STRING:
            self._memory.grow(_STRING_BYTES * min(declared.elements, len(content) // 4))
        elif declared.tensor_type.number in NARROW:
            self._memory.grow(NARROW_BYTES * len(content))
        fill_raw(tensor, declared, content, source)

    def call(self, outputs: Iterable[str], deadline_s: float) -> Call:
        """Returns the call, for some outputs or, if there are none, for all."""
        self._message.output_filter.extend(outputs)
        return Call(Method.PREDICT, self._message.SerializeToString(), deadline_s)


def answers(message: bytes, outputs: Sequence[str]) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yields name, datatype and array of each output of a Predict response, in the requested order.

    Raises:
        ServingError: The protocol does not have the type of an output.
    """
    tensor_of = protocol.PredictResponse.FromString(message).outputs
    for name in outputs or sorted(tensor_of):
        tensor = tensor_of[name]
        yield name, datatype_of(f"output {name}", tensors.BY_NUMBER[tensor.dtype]), tensors.from_proto(tensor)


def metadata_of(catalog: Catalog, target: RequestTarget) -> dict[str, Any]:
    """Returns name, available versions, platform, inputs and outputs (a size of -1 is open) of a version's model.

    Raises:
        ServingError: The version is not available, or its default signature holds what the protocol cannot say.
    """
    servable = catalog.find(target.model, target.version, target.label)
    servable.signature("")
    definitions = protocol.SignatureDefMap.FromString(servable.metadata()[1])
    definition = definitions.signature_def[DEFAULT_SIGNATURE]
    view = catalog.views.get(target.model)
    numbers = sorted(view.servables) if view is not None else [servable.version]
    inputs, outputs = described(definition)
    facts = {"name": target.model, "versions": list(map(str, numbers)), "platform": servable.format}
    return {**facts, "inputs": inputs, "outputs": outputs}


def described(definition: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns name, datatype and shape of each input and of each output of a ``SignatureDef``, sorted by name.

    Raises:
        ServingError: It holds what the protocol cannot say.
    """
    return (
        [_described(f"input {name}", definition.inputs[name]) for name in sorted(definition.inputs)],
        [_described(f"output {name}", definition.outputs[name]) for name in sorted(definition.outputs)],
    )


def _described(tensor: str, info: Any) -> dict[str, object]:
    datatype = datatype_of(tensor, tensors.BY_NUMBER.get(info.dtype))
    shape = tensors.shape_of(info)
    if shape is None:
        raise invalid_argument(
            f"{tensor} of the model may have any rank, which the metadata of the Open Inference Protocol cannot say; "
            "requests for the model work"
        )
    return {"name": tensor.partition(" ")[2], "datatype": datatype, "shape": list(shape)}
