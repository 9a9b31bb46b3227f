"""The protocol's gRPC service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from airflow_hops import __version__
from airflow_hops.core.serving_api.protocol import Method, load_messages
from airflow_hops.core.serving_api.tensors import STRING
from airflow_hops.extensions.open_inference.serving.datatypes import Declared, from_raw, to_raw
from airflow_hops.extensions.open_inference.serving.predict import Asked, check_parameters, metadata_of, target_of
from airflow_hops.extensions.open_inference.serving.rest_api import EXTENSIONS
from airflow_hops.serving.access import Right
from airflow_hops.serving.api import grpc_service
from airflow_hops.serving.api.grpc_calls import Metadata
from airflow_hops.serving.api.grpc_methods import unary
from airflow_hops.serving.api.grpc_service import GrpcServer
from airflow_hops.serving.errors import ServingError, check_deadline, invalid_argument
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.models.servable import Call, Servable
from airflow_hops.serving.request_handler import RequestHandler, Target

SERVICE = "inference.GRPCInferenceService"
MESSAGES = load_messages(__package__)
"""Message classes by name."""

_INTEGERS = {
    "int_contents": ("INT8", "INT16", "INT32"),
    "int64_contents": ("INT64",),
    "uint_contents": ("UINT8", "UINT16", "UINT32"),
    "uint64_contents": ("UINT64",),
}
_FIELDS = {
    **{datatype: field for field, datatypes in _INTEGERS.items() for datatype in datatypes},
    "BOOL": "bool_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def add_service(server: GrpcServer, handler: RequestHandler, lifecycle: Lifecycle) -> None:
    """Adds the service to a server."""
    catalog = handler.catalog

    def live(request: Any, context: object) -> Any:
        return MESSAGES["ServerLiveResponse"](live=True)

    def ready(request: Any, context: object) -> Any:
        return MESSAGES["ServerReadyResponse"](ready=lifecycle.ready)

    def model_ready(request: Any, context: object) -> Any:
        target = target_of(request.name, request.version)
        try:
            catalog.find(target.model, target.version, target.label)
        except ServingError:
            if not target.model:
                raise
            return MESSAGES["ModelReadyResponse"](ready=False)
        return MESSAGES["ModelReadyResponse"](ready=True)

    def server_metadata(request: Any, context: object) -> Any:
        return MESSAGES["ServerMetadataResponse"](name="airflow-hops", version=__version__, extensions=EXTENSIONS)

    def model_metadata(request: Any, context: object) -> Any:
        return MESSAGES["ModelMetadataResponse"](
            **asdict(metadata_of(catalog, target_of(request.name, request.version)))
        )

    methods = {
        "ServerLive": (live, Right.OPEN),
        "ServerReady": (ready, Right.OPEN),
        "ModelReady": (model_ready, Right.PREDICT),
        "ServerMetadata": (server_metadata, Right.PREDICT),
        "ModelMetadata": (model_metadata, Right.PREDICT),
    }
    handlers = {name: unary(answer, MESSAGES[f"{name}Request"]) for name, (answer, _) in methods.items()}
    server.add_service(SERVICE, handlers, {name: right for name, (_, right) in methods.items()})
    inference = _Inference(handler)
    server.add_method(f"/{SERVICE}/ModelInfer", Right.PREDICT, inference.read, inference.is_quick, inference.answer)


class _Received(NamedTuple):
    """An encoded request, its target and its id; nothing else of it is decoded."""

    message: bytes
    target: Target
    request_id: str


class _Inference:
    """``ModelInfer``."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler

    def read(self, message: bytes) -> _Received:
        try:
            head = MESSAGES["ModelInferHead"].FromString(message)
        except DecodeError as error:
            raise invalid_argument(f"The message does not parse as a ModelInferRequest: {error}") from None
        return _Received(message, target_of(head.model_name, head.model_version), head.id)

    def is_quick(self, received: _Received) -> bool:
        return self._handler.is_quick(received.target.model, Method.PREDICT, len(received.message))

    def answer(self, received: _Received, metadata: Metadata, deadline_s: float) -> tuple[bytes, Metadata | None]:
        target = received.target
        asked: Asked | None = None
        is_raw = False

        def make_call(servable: Servable) -> Call:
            nonlocal asked, is_raw
            check_deadline(deadline_s)
            try:
                request = MESSAGES["ModelInferRequest"].FromString(received.message)
            except DecodeError as error:
                raise invalid_argument(f"The message does not parse as a ModelInferRequest: {error}") from None
            is_raw = bool(request.raw_input_contents)
            asked = _asked(request)
            return asked.call(target, servable, deadline_s)

        request_id, sticky_key = grpc_service.keys_of(metadata, self._handler.sticky_header)
        answered = self._handler.answer(target, make_call, "grpc", received.request_id or request_id, sticky_key)
        assert asked is not None
        response = MESSAGES["ModelInferResponse"](
            model_name=target.model, model_version=str(answered.version), id=answered.request_id or ""
        )
        outputs = list(asked.answers(answered.message))
        is_raw = is_raw or any(datatype not in _FIELDS for _, datatype, _ in outputs)
        for name, datatype, array in outputs:
            output = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
            if is_raw:
                response.raw_output_contents.append(to_raw(array))
            else:
                getattr(output.contents, _FIELDS[datatype]).extend(array.ravel().tolist())
        trailing = grpc_service.metadata_of(answered) if request_id is not None else None
        return response.SerializeToString(), trailing


def _asked(request: Any) -> Asked:
    """Returns the contents of a request.

    Raises:
        ServingError: Data do not fit types and shapes, or a parameter is not supported.
    """
    check_parameters("the request", request.parameters)
    for output in request.outputs:
        check_parameters(f"output {output.name}", output.parameters)
    signature = request.parameters.get("signature_name", MESSAGES["InferParameter"](string_param=""))
    if signature.WhichOneof("parameter_choice") != "string_param":
        raise invalid_argument("the parameter signature_name is not a string_param")
    return Asked(signature.string_param, list(_inputs(request)), [output.name for output in request.outputs])


def _inputs(request: Any) -> Iterator[tuple[Declared, np.ndarray]]:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise invalid_argument(
            f"raw_input_contents has {len(raw)} entries; expected {len(request.inputs)}, one an input"
        )
    for at, each in enumerate(request.inputs):
        declared = Declared.of(each.name, each.datatype, each.shape)
        check_parameters(f"input {each.name}", each.parameters)
        if not raw:
            yield declared, from_contents(declared, each.contents)
        elif each.contents.ByteSize():
            raise declared.error("it has both contents and raw_input_contents; expected one")
        else:
            yield declared, from_raw(declared, raw[at], f"raw_input_contents[{at}]")


def from_contents(declared: Declared, contents: Any) -> np.ndarray:
    """Returns a tensor from its typed contents.

    Raises:
        ServingError: The contents are in a field of another type, or do not fit type and shape.
    """
    expected = _FIELDS.get(declared.datatype)
    if expected is None:
        raise declared.error(f"{declared.datatype} has no typed contents; expected raw_input_contents")
    for descriptor, _ in contents.ListFields():
        if descriptor.name != expected:
            raise declared.error(f"its contents are in {descriptor.name}; expected {expected}")
    values = getattr(contents, expected)[:]  # a list in one step
    tensor_type = declared.tensor_type
    if tensor_type is STRING:
        strings = np.empty(len(values), object)
        strings[:] = values
        return declared.shaped(strings, expected)
    flat = np.array(
        values, np.int64 if expected == "int_contents" else np.uint64 if "uint_" in expected else tensor_type.numpy
    )
    if flat.dtype != tensor_type.numpy:
        limits = np.iinfo(tensor_type.numpy)
        outside = flat[(flat < limits.min) | (flat > limits.max)]
        if outside.size:
            raise declared.error(f"{expected} holds {outside[0]}; expected {limits.min} to {limits.max}")
    return declared.shaped(flat.astype(tensor_type.numpy), expected)
