"""TensorFlow Serving's gRPC services: prediction, model status and reload, and health."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from airflow_hops.serving import protocol, tensors
from airflow_hops.serving.catalog import Catalog
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.loader import Loader
from airflow_hops.serving.prediction import Predictor, Target
from airflow_hops.serving.servable import DEFAULT_SIGNATURE, Servable, Signature

log = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"


def make_server(max_threads: int) -> grpc.Server:
    """Returns a server that listens nowhere yet.

    Args:
        max_threads: Requests that run at once.
    """
    return grpc.server(
        ThreadPoolExecutor(max_threads, "grpc"),
        options=[
            # gRPC would share a taken port with whoever holds it, and half the requests would go astray.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ],
    )


def add_services(server: grpc.Server, predictor: Predictor, loader: Loader, is_serving: Callable[[], bool]) -> None:
    """Adds all services to a server.

    Args:
        server: Made by ``make_server``.
        predictor: Answers predict requests.
        loader: Takes new configs.
        is_serving: What the health service reports.
    """
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(PredictionService(predictor), server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(predictor.catalog, loader), server)
    server.add_generic_rpc_handlers((_health_handler(is_serving),))


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Predict and GetModelMetadata; the other methods answer UNIMPLEMENTED."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def Predict(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answers ``PredictRequest`` with ``PredictResponse``."""
        try:
            target = _target(request, _request_id(context))

            def decode(servable: Servable, signature: Signature) -> dict[str, np.ndarray]:
                return _decode(request.inputs)

            prediction = self._predictor.predict(target, "grpc", decode, request.output_filter)
            response = predict_pb2.PredictResponse()
            outputs = response.outputs
            for alias, array in prediction.outputs.items():
                tensors.fill_proto(outputs[alias], array)
            spec = response.model_spec
            spec.name = target.model
            spec.signature_name = prediction.signature
            spec.version.value = prediction.version
        except ServingError as error:
            context.abort(error.code, error.message)
        except Exception as error:
            log.exception("Predict failed")
            context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"[:1024])
        if prediction.request_id is not None:
            context.set_trailing_metadata(((REQUEST_ID, prediction.request_id),))
        return response

    def GetModelMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answers ``GetModelMetadataRequest`` with the signatures of a version."""
        try:
            return model_metadata(self._predictor.catalog, request)
        except ServingError as error:
            context.abort(error.code, error.message)


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """GetModelStatus and HandleReloadConfigRequest."""

    def __init__(self, catalog: Catalog, loader: Loader) -> None:
        self._catalog = catalog
        self._loader = loader

    def GetModelStatus(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answers ``GetModelStatusRequest`` with the state of each version."""
        try:
            return model_status(self._catalog, request)
        except ServingError as error:
            context.abort(error.code, error.message)

    def HandleReloadConfigRequest(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Takes a new config; answers once what it adds is available."""
        try:
            self._loader.reload(request.config)
        except ServingError as error:
            context.abort(error.code, error.message)
        return model_management_pb2.ReloadConfigResponse()


def model_status(catalog: Catalog, request: Any) -> Any:
    """Returns ``GetModelStatusResponse``; labels are ignored, as TensorFlow Serving does.

    Raises:
        ServingError: There is no model spec, or no such model or version.
    """
    _require_spec(request)
    spec = request.model_spec
    version = spec.version.value if spec.WhichOneof("version_choice") == "version" else None
    response = get_model_status_pb2.GetModelStatusResponse()
    for status in catalog.statuses(spec.name, version):
        entry = response.model_version_status.add(version=status.version, state=int(status.state))
        entry.status.SetInParent()
        if status.error is not None:
            entry.status.error_code = status.error.number
            entry.status.error_message = status.error.message
    return response


def model_metadata(catalog: Catalog, request: Any) -> Any:
    """Returns ``GetModelMetadataResponse``.

    Raises:
        ServingError: There is no model spec, no such model, or a field other than "signature_def" is asked for.
    """
    _require_spec(request)
    if not request.metadata_field:
        raise invalid_argument("GetModelMetadataRequest must specify at least one metadata_field")
    for name in request.metadata_field:
        if name != "signature_def":
            raise invalid_argument(f"Metadata field {name} is not supported")
    target = _target(request, None)
    servable = catalog.acquire(target.model, target.version, target.label)
    try:
        signatures = get_model_metadata_pb2.SignatureDefMap()
        for name, definition in servable.signature_defs.items():
            signatures.signature_def[name].CopyFrom(definition)
    finally:
        servable.release()
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.model_spec.name = target.model
    response.model_spec.version.value = servable.version
    response.metadata["signature_def"].Pack(signatures)
    return response


def _require_spec(request: Any) -> None:
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")


def _target(request: Any, request_id: str | None) -> Target:
    _require_spec(request)
    spec = request.model_spec
    choice = spec.WhichOneof("version_choice")
    return Target(
        model=spec.name,
        version=spec.version.value if choice == "version" else None,
        label=spec.version_label if choice == "version_label" else None,
        signature=spec.signature_name or DEFAULT_SIGNATURE,
        request_id=request_id,
    )


def _decode(protos: Any) -> dict[str, np.ndarray]:
    inputs = {}
    for alias, proto in protos.items():
        try:
            inputs[alias] = tensors.from_proto(proto)
        except tensors.TensorError as error:
            raise invalid_argument(f"tensor parsing error: {alias} ({error})") from None
    return inputs


def _request_id(context: grpc.ServicerContext) -> str | None:
    for key, value in context.invocation_metadata():
        if key == REQUEST_ID:
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return None


def _health_handler(is_serving: Callable[[], bool]) -> Any:
    def check(request: Any, context: grpc.ServicerContext) -> Any:
        known = ("", "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService")
        if request.service not in known:
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service!r}; known are {known[1:]}")
        return protocol.HealthCheckResponse(status=1 if is_serving() else 2)

    method = grpc.unary_unary_rpc_method_handler(
        check,
        request_deserializer=protocol.HealthCheckRequest.FromString,
        response_serializer=protocol.HealthCheckResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(protocol.HEALTH_SERVICE, {"Check": method})
