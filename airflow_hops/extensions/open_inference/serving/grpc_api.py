"""The protocol's gRPC service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from airflow_hops import __version__
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Method, load_messages
from airflow_hops.extensions.open_inference.serving.datatypes import Declared, declare, to_raw
from airflow_hops.extensions.open_inference.serving.predict import (
    PredictMessage,
    answers,
    check_id,
    check_parameters,
    metadata_of,
    target_of,
)
from airflow_hops.extensions.open_inference.serving.rest_api import EXTENSIONS
from airflow_hops.serving.access import Right
from airflow_hops.serving.api import grpc_service
from airflow_hops.serving.api.grpc_calls import Metadata
from airflow_hops.serving.api.grpc_methods import unary
from airflow_hops.serving.api.grpc_service import GrpcServer
from airflow_hops.serving.errors import ServingError, check_deadline, invalid_argument
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.models.servable import Call, Servable
from airflow_hops.serving.request_handler import RequestHandler, RequestTarget
from airflow_hops.serving.request_memory import MessageLayout

SERVICE = "inference.GRPCInferenceService"
MESSAGES = load_messages(__package__)
"""Message classes by name."""

_INTEGERS = {
    "int_contents": ("INT8", "INT16", "INT32"),
    "int64_contents": ("INT64",),
    "uint_contents": ("UINT8", "UINT16", "UINT32"),
    "uint64_contents": ("UINT64",),
}
_NARROW = ("INT8", "INT16", "UINT8", "UINT16")  # in fields of 32 bits
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

    def live(request: object, context: object) -> object:
        return MESSAGES["ServerLiveResponse"](live=True)

    def ready(request: object, context: object) -> object:
        return MESSAGES["ServerReadyResponse"](ready=lifecycle.ready)

    def model_ready(request: Any, context: object) -> object:
        target = target_of(request.name, request.version)
        try:
            catalog.find(target.model, target.version, target.label)
        except ServingError:
            if not target.model:
                raise
            return MESSAGES["ModelReadyResponse"](ready=False)
        return MESSAGES["ModelReadyResponse"](ready=True)

    def server_metadata(request: object, context: object) -> Any:
        return MESSAGES["ServerMetadataResponse"](name="airflow-hops", version=__version__, extensions=EXTENSIONS)

    def model_metadata(request: Any, context: object) -> Any:
        return MESSAGES["ModelMetadataResponse"](**metadata_of(catalog, target_of(request.name, request.version)))

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
    functions = inference.read, inference.is_quick, inference.answer
    server.add_method(f"/{SERVICE}/ModelInfer", Right.PREDICT, *functions, _LAYOUT)


# As measured; the request is also a Predict request.
_CONTENTS = MessageLayout(varints=frozenset(range(1, 6)), varint_bytes=120)
_LAYOUT = MessageLayout({5: MessageLayout({5: _CONTENTS}, varints=frozenset({3}))})


class _Received(NamedTuple):
    """An encoded request, its target and its id; nothing else of it is decoded."""

    message: bytes
    target: RequestTarget
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
        is_raw = False
        memory = self._handler.memory.reserve()
        names: Sequence[str] = ()

        def make_call(servable: Servable) -> Call:
            nonlocal names, is_raw
            check_deadline(deadline_s)
            check_id(received.request_id)
            try:
                request = MESSAGES["ModelInferRequest"].FromString(received.message)
            except DecodeError as error:
                raise invalid_argument(f"The message does not parse as a ModelInferRequest: {error}") from None
            is_raw = bool(request.raw_input_contents)
            names = [output.name for output in request.outputs]
            message = PredictMessage(target, servable, _signature(request), memory)
            fill(message, request)
            return message.call(names, deadline_s)

        request_id, sticky_key = grpc_service.keys_of(metadata, self._handler.sticky_header)
        try:
            answered = self._handler.answer(
                target, make_call, "grpc", received.request_id or request_id, sticky_key, len(received.message)
            )
        finally:
            memory.release()
        response = MESSAGES["ModelInferResponse"](
            model_name=target.model, model_version=str(answered.version), id=answered.request_id or ""
        )
        outputs = list(answers(answered.message, names))
        is_raw = is_raw or any(datatype not in _FIELDS for _, datatype, _ in outputs)
        for name, datatype, array in outputs:
            output = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
            if is_raw:
                response.raw_output_contents.append(to_raw(array))
            else:
                tensors.extend(getattr(output.contents, _FIELDS[datatype]), array.ravel())
        trailing = grpc_service.metadata_of(answered) if request_id is not None else None
        return response.SerializeToString(), trailing


def _signature(request: Any) -> str:
    """Returns the signature that a request names; raises ServingError if there are parameters that cannot be."""
    check_parameters("the request", request.parameters)
    for output in request.outputs:
        check_parameters(f"output {output.name}", output.parameters)
    if "signature_name" not in request.parameters:
        return ""
    parameter = request.parameters["signature_name"]
    if parameter.WhichOneof("parameter_choice") != "string_param":
        raise invalid_argument("the parameter signature_name is not a string_param")
    name: str = parameter.string_param
    return name


def fill(message: PredictMessage, request: Any) -> None:
    """Adds the inputs of a ``ModelInferRequest`` to a message.

    Raises:
        ServingError: Data do not fit types and shapes, or a parameter is not supported.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise invalid_argument(
            f"raw_input_contents has {len(raw)} entries; expected {len(request.inputs)}, one an input"
        )
    for index, each in enumerate(request.inputs):
        declared = declare(each.name, each.datatype, each.shape[:])
        check_parameters(f"input {each.name}", each.parameters)
        if not raw:
            fill_contents(message.add(declared), declared, each.contents)
        elif each.contents.ByteSize():
            raise declared.error("it has both contents and raw_input_contents; expected one")
        else:
            message.add_raw(declared, raw[index], f"raw_input_contents[{index}]")


def fill_contents(tensor: Any, declared: Declared, contents: Any) -> None:
    """Fills a ``TensorProto`` from typed contents.

    Raises:
        ServingError: The contents are in a field of another type, or do not fit type and shape.
    """
    field = _FIELDS.get(declared.datatype)
    if field is None:
        raise declared.error(f"{declared.datatype} has no typed contents; expected raw_input_contents")
    for descriptor, _ in contents.ListFields():
        if descriptor.name != field:
            raise declared.error(f"its contents are in {descriptor.name}; expected {field}")
    values = getattr(contents, field)
    declared.check_count(len(values), field)
    if declared.datatype in _NARROW:
        limits = np.iinfo(declared.tensor_type.numpy)
        for value in values:
            if not limits.min <= value <= limits.max:
                raise declared.error(f"{field} holds {value}; expected {limits.min} to {limits.max}")
    if values and (tag := declared.tensor_type.packed_tag):
        # A packed field has the same bytes in both messages; a Python object for each float would take far longer.
        contents.DiscardUnknownFields()
        tensor.MergeFromString(bytes((tag,)) + contents.SerializeToString()[1:])
    else:
        getattr(tensor, declared.tensor_type.field).extend(values)
