"""A small gRPC client of TensorFlow Serving's API, without TensorFlow.

Example::

    with ModelServerClient("127.0.0.1:8500") as client:
        client.wait_until_available("flights", 3, timeout_s=60)
        result = client.predict("flights", {"carrier": ["AA"], "distance": [733.0]})
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.answers import (
    ModelMetadata,
    ModelServerError,
    ModelVersion,
    PredictResult,
    RequestRefused,
    SignatureSpec,
    TensorSpec,
    TrafficSplit,
    error_of,
)
from airflow_hops.core.serving_api.tls_files import TlsFiles, open_channel

# A failed version that was written again still shows the old failure until the server's next check.
_STALE_ERROR_S = 5.0

STATES = {0: "UNKNOWN", 10: "START", 20: "LOADING", 30: "AVAILABLE", 40: "UNLOADING", 50: "END"}


class ModelServerClient:
    """Client of the bundled server or of any ``tensorflow_model_server``.

    Args:
        address: ``host:port`` of the gRPC port.
        timeout_s: Deadline of each call, in seconds.
        tls: Files for TLS; None for a connection without TLS.
        token: Token of the server's ``--control_token_file``, for all calls except predictions.
        prediction_token: Token of its ``--prediction_token_file``; None sends ``token``.
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
        self._control_token, self._prediction_token = (
            (("authorization", f"Bearer {each}"),) if each else () for each in (token, prediction_token or token)
        )
        self._channel = open_channel(address, tls)
        self._input_types: dict[tuple[str, str], dict[str, np.dtype]] = {}

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
        inputs: Mapping[str, object],
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
            inputs: Alias to array-like; values are converted to the dtype of the model's signature.
            version: Version to use; None lets the label, the traffic split or the latest version decide.
            label: Label to use if no version is given.
            signature: Signature name; None for the default.
            request_id: Sent as ``x-request-id`` and stored with the captured rows. None lets the server generate one.
            sticky_key: Sent as ``x-sticky-key``: equal keys go to the same version of a split.

        Raises:
            ModelServerError: The server refused the request or cannot be reached.
            ValueError: An input cannot be converted to the signature's dtype.
        """
        request = protocol.PredictRequest()
        _fill_spec(request.model_spec, model, version, label, signature)
        for alias, value in self._converted(model, version, label, signature, inputs).items():
            tensors.fill_proto(request.inputs[alias], value)
        headers = _request_headers(request_id, sticky_key)
        response, sent_back = self._ask(protocol.Method.PREDICT, request, protocol.PredictResponse, headers)
        return PredictResult(
            outputs={alias: tensors.from_proto(response.outputs[alias]) for alias in response.outputs},
            version=response.model_spec.version.value,
            request_id=sent_back.get("x-request-id") or request_id,
        )

    def status(self, model: str, version: int | None = None) -> list[ModelVersion]:
        """Returns the states of a model's versions, or of one; an empty list if the server does not know them.

        Raises:
            ModelServerError: The server refused the request or cannot be reached.
        """
        request = protocol.GetModelStatusRequest()
        _fill_spec(request.model_spec, model, version)
        try:
            response, _ = self._ask(protocol.GET_MODEL_STATUS, request, protocol.GetModelStatusResponse)
        except ModelServerError as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                return []
            raise
        return [
            ModelVersion(entry.version, STATES.get(entry.state, str(entry.state)), entry.status.error_message)
            for entry in response.model_version_status
        ]

    def reload_config(self, config: Any, *, timeout_s: float | None = None) -> None:
        """Replaces the server's config; models that are not in it are unloaded.

        Args:
            config: A ``ModelServerConfig`` message, of :mod:`airflow_hops.core.serving_api.protocol` or of TensorFlow
                Serving's own modules.
            timeout_s: Deadline in seconds: the server responds once all added versions are available.

        Raises:
            ModelServerError: The server refused the config or cannot be reached.
        """
        request = protocol.ReloadConfigRequest()
        request.config.ParseFromString(config.SerializeToString())
        response = self._control(protocol.RELOAD_CONFIG, request, protocol.ReloadConfigResponse, timeout_s)
        if response.status.error_code:
            code = next(code for code in grpc.StatusCode if code.value[0] == response.status.error_code)
            raise error_of(self.address, code, response.status.error_message)

    def traffic(self, model: str) -> TrafficSplit:
        """Returns the traffic split of a model; only the bundled server has one.

        Raises:
            ModelServerError: The model does not exist (code NOT_FOUND), the server is TensorFlow Serving's own
                (UNIMPLEMENTED), or it cannot be reached.
        """
        return self._traffic("GetTraffic", protocol.GetTrafficRequest(model=model))

    def set_traffic(self, model: str, percents: Mapping[int, int] | None) -> TrafficSplit:
        """Sets the traffic split of a model, and returns it as the server now has it; it is in effect on return.

        Args:
            model: Model name.
            percents: Available versions to percent, integers that sum to 100; None lets the latest version answer.

        Raises:
            ModelServerError: The server refused the split (nothing changes then), is TensorFlow Serving's own (code
                UNIMPLEMENTED), or cannot be reached.
        """
        request = protocol.SetTrafficRequest(model=model)
        for version, percent in (percents or {}).items():
            request.shares.add(version=version, percent=percent)
        return self._traffic("SetTraffic", request)

    def wait_until_available(
        self, model: str, version: int, timeout_s: float, *, on_state: Callable[[str], None] = lambda state: None
    ) -> None:
        """Waits until a version answers requests.

        Args:
            model: Model name.
            version: Version number.
            timeout_s: Time limit in seconds, which includes the start of the server.
            on_state: Called with a text for each new state.

        Raises:
            ModelServerError: The version failed to load (the server's message says why), or is not available in time.
        """
        began_s = time.monotonic()
        first_error: str | None = None
        last = ""
        while True:
            status = "the server has not seen it"
            try:
                state = next(iter(self.status(model, version)), None)
            except RequestRefused:
                raise
            except ModelServerError as problem:
                status = str(problem)
            else:
                error = state.error if state is not None else ""
                first_error = error if first_error is None else first_error
                if state is not None:
                    if state.state == "AVAILABLE":
                        return
                    status = f"{state.state}: {error}" if error else state.state
                if error and (error != first_error or time.monotonic() - began_s >= _STALE_ERROR_S):
                    raise RequestRefused(
                        f"model server {self.address} does not load model {model!r} version {version}: {error}",
                        grpc.StatusCode.FAILED_PRECONDITION,
                    )
            if status != last:
                on_state(status)
                last = status
            left_s = began_s + timeout_s - time.monotonic()
            if left_s <= 0:
                raise ModelServerError(
                    f"model server {self.address}: model {model!r} version {version} is not available after "
                    f"{timeout_s:g} s ({status})",
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                )
            time.sleep(min(0.1, left_s))

    def metadata(self, model: str, *, version: int | None = None, label: str | None = None) -> ModelMetadata:
        """Returns the signatures of a version.

        Args:
            model: Model name.
            version: Version number; None for the latest, or the one that the traffic split selects.
            label: Label, if no version is given.

        Raises:
            ModelServerError: The model, version or label does not exist, or the server cannot be reached.
        """
        request = protocol.GetModelMetadataRequest(metadata_field=["signature_def"])
        _fill_spec(request.model_spec, model, version, label)
        response, _ = self._ask(protocol.GET_MODEL_METADATA, request, protocol.GetModelMetadataResponse)
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
        self, model: str, version: int | None, label: str | None, signature: str | None, inputs: Mapping[str, object]
    ) -> dict[str, np.ndarray]:
        key = (model, signature or "serving_default")
        types = self._input_types.get(key)
        if types is None or not types.keys() >= inputs.keys():
            known = self.metadata(model, version=version, label=label).signatures.get(key[1])
            # The server refuses a missing signature with its own message.
            specs = {} if known is None else known.inputs
            numpy_types = {alias: tensors.BY_NAME.get(spec.dtype) for alias, spec in specs.items()}
            types = {alias: each.numpy for alias, each in numpy_types.items() if each is not None}
            self._input_types[key] = types
        return {alias: _as_array(alias, value, types.get(alias)) for alias, value in inputs.items()}

    def _ask(
        self, method: str, request: object, response: object, headers: tuple[tuple[str, str], ...] = ()
    ) -> tuple[Any, dict[str, Any]]:
        """Calls a method with the prediction token; returns the response and its trailing metadata."""
        return self._call(method, request, response, (*self._prediction_token, *headers), self.timeout_s)

    def _control(self, method: str, request: object, response: object, timeout_s: float | None = None) -> Any:
        return self._call(method, request, response, self._control_token, timeout_s or self.timeout_s)[0]

    def _traffic(self, method: str, request: object) -> TrafficSplit:
        response = self._control(f"/{protocol.TRAFFIC_SERVICE}/{method}", request, protocol.TrafficResponse)
        return TrafficSplit(
            percents={share.version: share.percent for share in response.shares} or None,
            in_effect={share.version: share.percent for share in response.in_effect},
            persisted=response.persisted,
        )

    def _call(
        self, method: str, request: Any, response: Any, metadata: tuple[tuple[str, str], ...], timeout_s: float
    ) -> tuple[object, dict[str, object]]:
        ask = self._channel.unary_unary(method, type(request).SerializeToString, response.FromString)
        try:
            answer, call = ask.with_call(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise error_of(self.address, error.code(), error.details()) from error
        return answer, dict(call.trailing_metadata() or ())


def _request_headers(request_id: str | None, sticky_key: str | None = None) -> tuple[tuple[str, str], ...]:
    # For an empty id the server generates one; without the header it does not return an id.
    named = (("x-request-id", request_id or ""),)
    return (*named, ("x-sticky-key", sticky_key)) if sticky_key else named


def _fill_spec(
    spec: Any, model: str, version: int | None, label: str | None = None, signature: str | None = None
) -> None:
    spec.name = model
    spec.signature_name = signature or ""
    if version is not None:
        spec.version.value = version
    elif label is not None:
        spec.version_label = label


def _specs(infos: Any) -> dict[str, TensorSpec]:
    specs = {}
    for alias, info in infos.items():
        known = tensors.BY_NUMBER.get(info.dtype)
        specs[alias] = TensorSpec(known.name if known else f"DataType {info.dtype}", tensors.shape_of(info))
    return specs


def _as_array(alias: str, value: object, dtype: np.dtype | None) -> np.ndarray:
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
