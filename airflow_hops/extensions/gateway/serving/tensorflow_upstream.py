"""Versions at upstream model servers, and upstreams of TensorFlow Serving's protocol."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from random import random
from typing import Any

import grpc

from airflow_hops.core.serving_api import protocol
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.core.serving_api.tls_files import TlsFiles
from airflow_hops.serving.access import TokenFile
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.catalog import State, VersionStatus
from airflow_hops.serving.models.servable import Call, Reply, Servable, Signature, VersionGone, read_signatures
from airflow_hops.serving.upstream import Upstream

_AVOID_S = 1.0


class TensorFlowUpstream(Upstream):
    """A server of TensorFlow Serving's API, to which requests are forwarded unchanged."""

    def __init__(self, address: str, tls: TlsFiles | None = None, token: TokenFile | None = None) -> None:
        super().__init__(address, tls, token)
        self._methods = {method: self._channel.unary_unary(method.value) for method in Method}
        self._status = self._method(protocol.GET_MODEL_STATUS, protocol.GetModelStatusResponse)
        self._metadata = self._method(protocol.GET_MODEL_METADATA, protocol.GetModelMetadataResponse)
        self._reload = self._method(protocol.RELOAD_CONFIG, protocol.ReloadConfigResponse)

    def _answer(self, method: Method, message: bytes, timeout_s: float | None) -> bytes:
        answer: bytes = self._call(self._methods[method], message, timeout_s)
        return answer

    def _read_statuses(self, model: str, timeout_s: float) -> Iterable[VersionStatus]:
        request = protocol.GetModelStatusRequest()
        request.model_spec.name = model
        try:
            entries = self._call(self._status, request, timeout_s).model_version_status
        except ServingError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
            entries = []
        return [_status(entry) for entry in entries]

    def is_reachable(self, timeout_s: float) -> bool:
        """Returns whether the server responds."""
        try:
            self._call(self._status, protocol.GetModelStatusRequest(), timeout_s)
        except ServingError as error:
            return error.code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        return True

    def read_metadata(self, model: str, version: int | None, label: str | None, timeout_s: float) -> tuple[int, bytes]:
        """Requests the number of a version or label and its signatures; see :meth:`Upstream.read_metadata`."""
        request = protocol.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = model
        if version is not None:
            request.model_spec.version.value = version
        elif label is not None:
            request.model_spec.version_label = label
        response = self._call(self._metadata, request, timeout_s)
        return response.model_spec.version.value, response.metadata["signature_def"].value

    def reload(self, config: Any, timeout_s: float) -> None:
        """Forwards a ``ModelServerConfig``; see :meth:`Upstream.reload`."""
        request = protocol.ReloadConfigRequest()
        request.config.CopyFrom(config)
        status = self._call(self._reload, request, timeout_s).status
        if status.error_code:
            raise ServingError.of_number(status.error_code, status.error_message)


class UpstreamServable(Servable):
    """A version at one or several upstreams, or a label that only they map to a version.

    Args:
        model: Model name.
        upstreams: Upstreams to choose from.
        version: Version number; None for a label.
        signature_defs: Signatures of the version.
        label: The label, if there is no version; answers contain its current version.
        read_metadata: Returns version and signatures of the label.
    """

    def __init__(
        self,
        model: str,
        upstreams: Sequence[Upstream],
        version: int | None = None,
        signature_defs: bytes = b"",
        label: str = "",
        read_metadata: Callable[[], tuple[int, bytes]] | None = None,
    ) -> None:
        path = ",".join(upstream.address for upstream in upstreams)
        super().__init__(model, version or 0, path, signature_defs)
        self._wanted, self._upstreams, self._read_metadata = version, upstreams, read_metadata
        head = protocol.RequestHead()
        if version is None:
            self._named = f"label {label} of model {model}"
            head.model_spec.version_label = label
        else:
            self._named = f"Specific({model}, {version})"
            head.model_spec.version.value = version
        self._pin: bytes = head.SerializeToString()

    def answer(self, call: Call) -> Reply:
        """Forwards a request."""
        answer = self._forward(call.method, _pinned(call, self._pin), call.deadline_s)
        version = _answering_version(call.method, answer) if self._wanted is None else None
        return Reply(answer, count_rows(call.method, call.message), version)

    def metadata(self) -> tuple[int, bytes]:
        """Returns the version, or the current one of the label, and its signatures."""
        return super().metadata() if self._read_metadata is None else self._read_metadata()

    def signature(self, name: str) -> Signature:
        """Returns the signature of a request; signatures of a label are read when they are first needed."""
        if self._read_metadata is not None and not self.signatures:
            self.signatures = read_signatures(self._read_metadata()[1])
        return super().signature(name)

    def _free(self) -> None:
        pass

    def _forward(self, method: Method, message: bytes, deadline_s: float) -> bytes:
        refused: ServingError | None = None
        away: list[str] = []
        for upstream in self._in_turn():
            try:
                left_s = None if math.isinf(deadline_s) else max(0.0, deadline_s - time.monotonic())
                return upstream.answer(method, message, left_s)
            except ServingError as error:
                if error.code is grpc.StatusCode.UNAVAILABLE:
                    upstream.avoid_until_s = time.monotonic() + _AVOID_S
                    # Inference has no side effects, so another upstream may be tried.
                    away.append(f"{upstream.address}: {error.message}")
                elif error.code is grpc.StatusCode.NOT_FOUND:
                    refused = error
                else:
                    raise
        if away:
            raise ServingError(
                grpc.StatusCode.UNAVAILABLE, f"No upstream answered for {self._named}: {'; '.join(away)}"
            )
        assert refused is not None
        raise VersionGone(refused.code, refused.message)

    def _in_turn(self) -> list[Upstream]:
        """Returns the upstreams to try: those with the version if any, least busy first, unreachable ones last."""
        if len(self._upstreams) == 1:
            return list(self._upstreams)
        now_s = time.monotonic()
        having = [upstream for upstream in self._upstreams if upstream.has(self.model, self._wanted)]
        return sorted(
            having or self._upstreams,
            key=lambda upstream: (upstream.is_away or upstream.avoid_until_s > now_s, upstream.in_flight, random()),
        )


def count_rows(method: Method, message: bytes) -> int:
    """Returns the number of rows of a request, decoding as little of it as possible; 1 if its inputs are scalars."""
    if method is Method.PREDICT:
        for tensor in protocol.PredictShapes.FromString(message).inputs.values():
            if tensor.tensor_shape.dim:
                return int(tensor.tensor_shape.dim[0].size)
        return 1
    multi = method is Method.MULTI_INFERENCE
    kind = protocol.SerializedMultiInferenceRequest if multi else protocol.SerializedInferenceRequest
    values = kind.FromString(message).input
    return len(values.example_list.examples) or len(values.example_list_with_context.examples) or 1


def _pinned(call: Call, pin: bytes) -> bytes:
    """Returns the request with a version or label; fields appended to a message override earlier ones."""
    if call.method is not Method.MULTI_INFERENCE:
        return call.message + pin
    request = protocol.MultiInferenceHead.FromString(call.message)
    for task in request.tasks:
        task.MergeFromString(pin)
    serialized: bytes = request.SerializeToString()
    return serialized


def _answering_version(method: Method, answer: bytes) -> int | None:
    if method is Method.MULTI_INFERENCE:
        results = protocol.MultiInferenceResponse.FromString(answer).results
        return results[0].model_spec.version.value if results else None
    version: int = protocol.ResponseSpec.FromString(answer).model_spec.version.value
    return version


def _status(entry: Any) -> VersionStatus:
    error = ServingError.of_number(entry.status.error_code, entry.status.error_message)
    known = {int(state) for state in State}
    state = State(entry.state) if entry.state in known else State.START
    return VersionStatus(entry.version, state, error if entry.status.error_code else None)
