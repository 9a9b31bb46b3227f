"""A small gRPC client of TensorFlow Serving's API, without TensorFlow.

Example::

    with ModelServerClient("127.0.0.1:8500") as client:
        client.wait_until_available("flights", 3, timeout_s=60)
        result = client.predict("flights", {"carrier": ["AA"], "distance": [733.0]})
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.answers import (
    ClassifyResult,
    ModelMetadata,
    ModelServerError,
    ModelVersion,
    PredictResult,
    RegressResult,
    SignatureSpec,
    TensorSpec,
    TrafficSplit,
)
from airflow_hops.core.serving_api.examples import fill_input
from airflow_hops.core.serving_api.tls import TlsFiles

# A version that failed before and was written anew still shows the old failure until the server looks again.
_FAILURE_STANDS_S = 2.0

STATES = {0: "UNKNOWN", 10: "START", 20: "LOADING", 30: "AVAILABLE", 40: "UNLOADING", 50: "END"}


class ModelServerClient:
    """Talks to the bundled server or to any ``tensorflow_model_server``.

    Args:
        address: ``host:port`` of the gRPC port.
        timeout_s: Deadline of each call, seconds.
        tls: Files for TLS; None for a connection without TLS.
        token: A token of the server's ``--control_token_file``, for all calls except predictions.
        prediction_token: A token of its ``--prediction_token_file``; None sends ``token``.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 10.0,
        tls: TlsFiles | None = None,
        token: str | None = None,
        prediction_token: str | None = None,
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._control, self._prediction = (
            (("authorization", f"Bearer {each}"),) if each else () for each in (token, prediction_token or token)
        )
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            # gRPC would wait up to two minutes before it looks for a server that has come back.
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        if tls is None:
            self._channel = grpc.insecure_channel(address, options=options)
        else:
            self._channel = grpc.secure_channel(address, tls.credentials(), options=options)
        self._predict = self._method(protocol.Method.PREDICT, protocol.PredictResponse)
        self._classify = self._method(protocol.Method.CLASSIFY, protocol.ClassificationResponse)
        self._regress = self._method(protocol.Method.REGRESS, protocol.RegressionResponse)
        self._metadata = self._method(protocol.GET_MODEL_METADATA, protocol.GetModelMetadataResponse)
        self._status = self._method(protocol.GET_MODEL_STATUS, protocol.GetModelStatusResponse)
        self._reload = self._method(protocol.RELOAD_CONFIG, protocol.ReloadConfigResponse)
        self._get_traffic = self._method(f"/{protocol.TRAFFIC_SERVICE}/GetTraffic", protocol.TrafficResponse)
        self._set_traffic = self._method(f"/{protocol.TRAFFIC_SERVICE}/SetTraffic", protocol.TrafficResponse)
        self._input_types: dict[tuple[str, str], dict[str, np.dtype[Any]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def predict(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str | None = None,
        request_id: str | None = None,
        sticky_key: str | None = None,
    ) -> PredictResult:
        """Requests a prediction.

        Args:
            model: Model name.
            inputs: Alias to array-like; values are converted to the dtype that the model's signature names.
            version: Version to use; None lets the label, the traffic split or the latest version decide.
            label: Label to use, if no version is given.
            signature: Signature name; None for the default.
            request_id: Sent as ``x-request-id``, and kept with the captured rows. None lets the server make one.
            sticky_key: Sent as ``x-sticky-key``: equal keys go to the same version of a split.

        Returns:
            The outputs, and the version that answered.

        Raises:
            ModelServerError: The server refused or cannot be reached.
            ValueError: An input cannot be converted to the signature's dtype.
        """
        request = protocol.PredictRequest()
        _fill_spec(request.model_spec, model, version, label, signature)
        for alias, value in self._converted(model, version, label, signature, inputs).items():
            tensors.fill_proto(request.inputs[alias], value)
        sticky = (("x-sticky-key", sticky_key),) if sticky_key else ()
        headers = (*self._prediction, *_request_id_header(request_id), *sticky)
        try:
            response, call = self._predict.with_call(request, timeout=self.timeout_s, metadata=headers)
        except grpc.RpcError as error:
            raise self._error(error) from error
        sent_back = dict(call.trailing_metadata() or ()).get("x-request-id")
        return PredictResult(
            outputs={alias: tensors.from_proto(response.outputs[alias]) for alias in response.outputs},
            version=response.model_spec.version.value,
            request_id=sent_back or request_id,
        )

    def classify(
        self,
        model: str,
        examples: Iterable[Mapping[str, Any]],
        *,
        context: Mapping[str, Any] | None = None,
        version: int | None = None,
        label: str | None = None,
        signature: str | None = None,
        request_id: str | None = None,
    ) -> ClassifyResult:
        """Requests the classes of examples.

        Args:
            model: Model name.
            examples: Feature name to value or list of values, for each example.
            context: Features of every example that lacks them.
            version: As in :meth:`predict`.
            label: Label to use, if no version is given.
            signature: Signature name; None for the default.
            request_id: Sent as ``x-request-id``.

        Raises:
            ModelServerError: The server refused or cannot be reached.
            ValueError: A feature has neither numbers nor strings.
        """
        request = protocol.ClassificationRequest()
        _fill_spec(request.model_spec, model, version, label, signature)
        fill_input(request.input, examples, context)
        response = self._call(self._classify, request, (*self._prediction, *_request_id_header(request_id)))
        classes = [[(chosen.label, chosen.score) for chosen in row.classes] for row in response.result.classifications]
        return ClassifyResult(classes, response.model_spec.version.value)

    def regress(
        self,
        model: str,
        examples: Iterable[Mapping[str, Any]],
        *,
        context: Mapping[str, Any] | None = None,
        version: int | None = None,
        label: str | None = None,
        signature: str | None = None,
        request_id: str | None = None,
    ) -> RegressResult:
        """Requests the values of examples; arguments and errors are those of :meth:`classify`."""
        request = protocol.RegressionRequest()
        _fill_spec(request.model_spec, model, version, label, signature)
        fill_input(request.input, examples, context)
        response = self._call(self._regress, request, (*self._prediction, *_request_id_header(request_id)))
        return RegressResult([value.value for value in response.result.regressions], response.model_spec.version.value)

    def status(self, model: str, version: int | None = None) -> list[ModelVersion]:
        """Returns the states of a model's versions, or of one.

        Raises:
            ModelServerError: The model or version does not exist (code NOT_FOUND), or the server cannot be reached.
        """
        request = protocol.GetModelStatusRequest()
        _fill_spec(request.model_spec, model, version, None)
        response = self._call(self._status, request, self._prediction)
        return [
            ModelVersion(entry.version, STATES.get(entry.state, str(entry.state)), entry.status.error_message)
            for entry in response.model_version_status
        ]

    def reload_config(self, config: Any, *, timeout_s: float | None = None) -> None:
        """Makes the server serve a complete config: a model that is not in it is unloaded.

        Args:
            config: A ``ModelServerConfig`` message, of :mod:`airflow_hops.core.serving_api.protocol` or of TensorFlow
                Serving's own modules.
            timeout_s: Deadline in seconds: the server answers once all added versions are available.

        Raises:
            ModelServerError: The server refused, or cannot be reached.
        """
        request = protocol.ReloadConfigRequest()
        request.config.ParseFromString(config.SerializeToString())
        response = self._call(self._reload, request, self._control, timeout_s)
        if response.status.error_code:
            code = next(code for code in grpc.StatusCode if code.value[0] == response.status.error_code)
            raise ModelServerError(f"{code.name} from {self.address}: {response.status.error_message}", code)

    def traffic(self, model: str) -> TrafficSplit:
        """Returns the traffic split of a model; only the bundled server has one.

        Raises:
            ModelServerError: The model does not exist (code NOT_FOUND), the server is TensorFlow Serving's own
                (UNIMPLEMENTED), or it cannot be reached.
        """
        return _split(self._call(self._get_traffic, protocol.GetTrafficRequest(model=model), self._control))

    def set_traffic(self, model: str, percents: Mapping[int, int] | None) -> TrafficSplit:
        """Sets the traffic split of a model; in effect on return.

        Args:
            model: Model name.
            percents: Available versions to percent, integers that sum to 100; None lets the latest version answer.

        Returns:
            The split as the server has it now.

        Raises:
            ModelServerError: The server refused (nothing changes then), is TensorFlow Serving's own (code
                UNIMPLEMENTED), or cannot be reached.
        """
        request = protocol.SetTrafficRequest(model=model)
        for version, percent in (percents or {}).items():
            request.shares.add(version=version, percent=percent)
        return _split(self._call(self._set_traffic, request, self._control))

    def wait_until_available(self, model: str, version: int, timeout_s: float) -> None:
        """Waits until a version answers requests.

        Args:
            model: Model name.
            version: Version number.
            timeout_s: How long to wait, in seconds, including the start of the server.

        Raises:
            ModelServerError: The version did not load (with the server's own message), or not in time.
        """
        deadline_s = time.monotonic() + timeout_s
        failed_since_s: float | None = None
        last = "the server has not answered yet"
        while True:
            try:
                state = self.status(model, version)[0]
            except ModelServerError as error:
                if error.code not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE):
                    raise
                last = str(error)
            else:
                if state.state == "AVAILABLE":
                    return
                last = f"{state.state}{': ' + state.error if state.error else ''}"
                failed = state.state == "END" and bool(state.error)
                failed_since_s = (failed_since_s or time.monotonic()) if failed else None
                if failed_since_s is not None and time.monotonic() - failed_since_s >= _FAILURE_STANDS_S:
                    raise ModelServerError(
                        f"model {model} version {version} did not load at {self.address}: {state.error}",
                        grpc.StatusCode.FAILED_PRECONDITION,
                    )
            if time.monotonic() >= deadline_s:
                raise ModelServerError(
                    f"model {model} version {version} is not available at {self.address} after {timeout_s:g} s; "
                    f"its last state: {last}",
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                )
            time.sleep(min(0.1, max(0.0, deadline_s - time.monotonic())))

    def metadata(self, model: str, *, version: int | None = None, label: str | None = None) -> ModelMetadata:
        """Returns the signatures of a version.

        Args:
            model: Model name.
            version: Version number; None for the latest, or the one that the traffic split chooses.
            label: Label, if no version is given.

        Raises:
            ModelServerError: The model, version or label does not exist, or the server cannot be reached.
        """
        request = protocol.GetModelMetadataRequest(metadata_field=["signature_def"])
        _fill_spec(request.model_spec, model, version, label)
        response = self._call(self._metadata, request, self._prediction)
        signatures = protocol.SignatureDefMap.FromString(response.metadata["signature_def"].value)
        return ModelMetadata(
            model=model,
            version=response.model_spec.version.value,
            signatures={
                name: SignatureSpec(_specs(definition.inputs), _specs(definition.outputs))
                for name, definition in signatures.signature_def.items()
            },
        )

    def _converted(
        self, model: str, version: int | None, label: str | None, signature: str | None, inputs: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        key = (model, signature or "serving_default")
        types = self._input_types.get(key)
        if types is None or not types.keys() >= inputs.keys():
            types = self._read_input_types(key, version, label)
        return {alias: _as_array(alias, value, types.get(alias)) for alias, value in inputs.items()}

    def _read_input_types(
        self, key: tuple[str, str], version: int | None, label: str | None
    ) -> dict[str, np.dtype[Any]]:
        specs = self.metadata(key[0], version=version, label=label).signatures.get(key[1])
        by_name = {tensor_type.name: tensor_type.numpy for tensor_type in tensors.BY_NUMBER.values()}
        # A signature that is not there is left to the server to refuse, in its own words.
        inputs = {} if specs is None else specs.inputs
        types = {alias: by_name[spec.dtype] for alias, spec in inputs.items() if spec.dtype in by_name}
        self._input_types[key] = types
        return types

    def _method(self, name: str, response: Any) -> Any:
        return self._channel.unary_unary(
            name,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )

    def _call(
        self, method: Any, request: Any, metadata: tuple[tuple[str, str], ...], timeout_s: float | None = None
    ) -> Any:
        try:
            return method(request, timeout=timeout_s or self.timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise self._error(error) from error

    def _error(self, error: grpc.RpcError) -> ModelServerError:
        return ModelServerError(f"{error.code().name} from {self.address}: {error.details()}", error.code())


def _request_id_header(request_id: str | None) -> tuple[tuple[str, str], ...]:
    # Without a name, the server makes an id; without the header, it tells of none.
    return (("x-request-id", request_id or ""),)


def _fill_spec(spec: Any, model: str, version: int | None, label: str | None, signature: str | None = None) -> None:
    spec.name = model
    spec.signature_name = signature or ""
    if version is not None:
        spec.version.value = version
    elif label is not None:
        spec.version_label = label


def _split(response: Any) -> TrafficSplit:
    return TrafficSplit(
        percents={share.version: share.percent for share in response.shares} or None,
        in_effect={share.version: share.percent for share in response.in_effect},
        persisted=response.persisted,
    )


def _specs(infos: Any) -> dict[str, TensorSpec]:
    specs = {}
    for alias, info in infos.items():
        known = tensors.BY_NUMBER.get(info.dtype)
        shape = None if info.tensor_shape.unknown_rank else tuple(dim.size for dim in info.tensor_shape.dim)
        specs[alias] = TensorSpec(known.name if known else f"DataType {info.dtype}", shape)
    return specs


def _as_array(alias: str, value: Any, dtype: np.dtype[Any] | None) -> np.ndarray:
    try:
        array = tensors.as_array(value)
    except ValueError as error:
        raise ValueError(f"input {alias!r}: {error}") from None
    if dtype is None or array.dtype == dtype:
        return array
    if "O" in (dtype.kind, array.dtype.kind) or not np.can_cast(array.dtype, dtype, "same_kind"):
        wanted = "strings" if dtype.kind == "O" else str(dtype)
        raise ValueError(f"input {alias!r} has dtype {array.dtype}; the model's signature takes {wanted}")
    converted: np.ndarray = array.astype(dtype)
    return converted
