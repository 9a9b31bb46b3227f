"""The way of a request through the server: as a Predict request of TensorFlow Serving's API, whatever it came in.

Split, limits, capture, observers and counts so do not depend on the protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.core.serving_api.tensors import STRING
from airflow_hops.extensions.open_inference.serving.datatypes import Declared, datatype_of
from airflow_hops.serving.errors import invalid_argument
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE, Call, Servable
from airflow_hops.serving.request_handler import Target

# Parameters of other servers' extensions, with which the answer would be another.
_REFUSED = ("sequence_id", "shared_memory_region", "classification")


def target_of(model: str, version: str | None) -> Target:
    """Returns the target of a request; a version that is not a number is a label.

    Raises:
        ServingError: The version is not an int64.
    """
    if not version:
        return Target(model)
    if not (version.isascii() and version.isdigit()):
        return Target(model, label=version)
    if len(version) > 19 or int(version) >= 2**63:
        raise invalid_argument(f"version is {version[:50]}; expected a number below 2^63, or a label")
    return Target(model, int(version))


def check_parameters(owner: str, names: Collection[str]) -> None:
    """Raises ServingError if there is a parameter that would change the answer, and is not supported."""
    for name in _REFUSED:
        if name in names:
            raise invalid_argument(f"{owner} has the parameter {name}, which this server does not support")


@dataclass(frozen=True, slots=True)
class Asked:
    """The contents of a request, whatever it came in.

    Attributes:
        signature: Signature name; empty for the default.
        inputs: Declared inputs with their arrays.
        outputs: Names of the requested outputs, in order; empty for all.
    """

    signature: str
    inputs: Sequence[tuple[Declared, np.ndarray]]
    outputs: Sequence[str]

    def call(self, target: Target, servable: Servable, deadline_s: float) -> Call:
        """Returns the request for the selected version; raises ServingError if types differ from the signature."""
        types = servable.signature(self.signature).input_types
        message = protocol.PredictRequest()
        target.fill(message.model_spec)
        message.model_spec.signature_name = self.signature
        for declared, array in self.inputs:
            name = declared.name
            if name in message.inputs:
                raise invalid_argument(f"input {name} is there twice; expected it once")
            if name in types and types[name] is not declared.tensor_type:
                expected = datatype_of(f"input {name}", types[name])
                raise invalid_argument(f"input {name} is {declared.datatype}; expected {expected}")
            tensors.fill_proto(message.inputs[name], array, as_content=declared.tensor_type is not STRING)
        message.output_filter.extend(self.outputs)
        return Call(Method.PREDICT, message.SerializeToString(), deadline_s)

    def answers(self, message: bytes) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yields name, datatype and array of each output of an answer.

        Raises:
            ServingError: The protocol does not have the type of an output.
        """
        outputs = protocol.PredictResponse.FromString(message).outputs
        for name in self.outputs or sorted(outputs):
            array = tensors.from_proto(outputs[name])
            yield name, datatype_of(f"output {name}", tensors.type_of(array)), array


@dataclass(frozen=True)
class Metadata:
    """Metadata of a model.

    Attributes:
        name: Model name.
        versions: The available versions, in order.
        platform: Its format.
        inputs: Name, datatype and shape of each input of the default signature; a size of -1 is open.
        outputs: The same of the outputs.
    """

    name: str
    versions: Sequence[str]
    platform: str
    inputs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]


def metadata_of(catalog: Catalog, target: Target) -> Metadata:
    """Returns the metadata of a version.

    Raises:
        ServingError: The version is not available, or its default signature holds what the protocol cannot say.
    """
    servable = catalog.find(target.model, target.version, target.label)
    servable.signature("")
    definitions = protocol.SignatureDefMap.FromString(servable.metadata()[1])
    definition = definitions.signature_def[DEFAULT_SIGNATURE]
    view = catalog.views.get(target.model)
    numbers = sorted(view.servables) if view is not None else [servable.version]
    return Metadata(
        target.model,
        [str(number) for number in numbers],
        servable.format,
        [_described(f"input {name}", definition.inputs[name]) for name in sorted(definition.inputs)],
        [_described(f"output {name}", definition.outputs[name]) for name in sorted(definition.outputs)],
    )


def _described(tensor: str, info: Any) -> dict[str, Any]:
    datatype = datatype_of(tensor, tensors.BY_NUMBER.get(info.dtype))
    if not info.HasField("tensor_shape") or info.tensor_shape.unknown_rank:
        raise invalid_argument(
            f"{tensor} of the model may have any rank, which the metadata of the Open Inference Protocol cannot say; "
            "requests for the model work"
        )
    name = tensor.partition(" ")[2]
    return {"name": name, "datatype": datatype, "shape": [dim.size for dim in info.tensor_shape.dim]}
