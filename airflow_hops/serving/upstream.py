"""Servers that a gateway forwards requests to: entry points of the group ``airflow_hops.upstreams``, by scheme."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc

from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.core.serving_api.tls_files import TlsFiles, open_channel
from airflow_hops.serving.access import TokenFile
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.catalog import State, VersionStatus


class Upstream(ABC):
    """A model server that requests are forwarded to; subclasses speak its protocol.

    Args:
        address: ``host:port`` or ``unix:path`` of its gRPC port.
        tls: Files for TLS; None for a connection without TLS.
        token: File with the token to send; None to send none.

    Attributes:
        is_away: Whether the last poll could not reach the server.
        in_flight: Number of requests that it is answering.
        avoid_until_s: Other servers are preferred until then, on the clock of ``time.monotonic()``.
        statuses: Model to version to last known status; replaced, never changed.
    """

    def __init__(self, address: str, tls: TlsFiles | None = None, token: TokenFile | None = None) -> None:
        self.address = address
        self._token = token
        self.is_away = False
        self.in_flight = 0
        self.avoid_until_s = 0.0
        self.statuses: Mapping[str, Mapping[int, VersionStatus]] = {}
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._channel = open_channel(address, tls)

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def has(self, model: str, version: int | None) -> bool:
        """Returns whether the version, or any version if None, was available at the last poll."""
        known = self.statuses.get(model, {})
        if version is None:
            return any(status.state is State.AVAILABLE for status in known.values())
        return version in known and known[version].state is State.AVAILABLE

    def answer(self, method: Method, message: bytes, timeout_s: float | None) -> bytes:
        """Forwards a serialized request of TensorFlow Serving's API; a time limit of None waits forever.

        Raises:
            ServingError: The server's error, or UNAVAILABLE if it cannot be reached.
        """
        with self._lock:
            self.in_flight += 1
        try:
            return self._answer(method, message, timeout_s)
        finally:
            with self._lock:
                self.in_flight -= 1

    def read_statuses(self, model: str, timeout_s: float) -> dict[int, VersionStatus]:
        """Requests the states of a model's versions; returns an empty dict if the server does not know the model.

        Raises:
            ServingError: The server cannot be reached.
        """
        # Send one request at a time, so that an older answer does not overwrite a newer one.
        if not self._asking.acquire(timeout=timeout_s):
            raise ServingError(grpc.StatusCode.DEADLINE_EXCEEDED, f"{self.address} does not answer")
        try:
            statuses = {status.version: status for status in self._read_statuses(model, timeout_s)}
            others = {name: known for name, known in self.statuses.items() if name != model}
            self.statuses = {**others, model: statuses} if statuses else others
        finally:
            self._asking.release()
        return statuses

    @abstractmethod
    def is_reachable(self, timeout_s: float) -> bool:
        """Returns whether the server responds."""

    @abstractmethod
    def read_metadata(self, model: str, version: int | None, label: str | None, timeout_s: float) -> tuple[int, bytes]:
        """Requests the number of a version or label and its signatures, a serialized ``SignatureDefMap``.

        Raises:
            ServingError: The version or label does not exist, or the server cannot be reached.
        """

    @abstractmethod
    def reload(self, config: Any, timeout_s: float) -> None:
        """Makes the server serve the models and versions of a ``ModelServerConfig``.

        Raises:
            ServingError: The server refused the config or cannot be reached.
        """

    @abstractmethod
    def _answer(self, method: Method, message: bytes, timeout_s: float | None) -> bytes:
        """Forwards a request; see :meth:`answer`."""

    @abstractmethod
    def _read_statuses(self, model: str, timeout_s: float) -> Iterable[VersionStatus]:
        """Requests the states of a model's versions; see :meth:`read_statuses`."""

    def _method(self, name: str, response: Any) -> Any:
        """Returns the gRPC method with a path, whose answers are of a message class."""
        return self._channel.unary_unary(
            name,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )

    def _call(self, method: Callable[..., object], request: object, timeout_s: float | None) -> Any:
        """Calls a gRPC method. Raises ServingError."""
        metadata = (("authorization", f"Bearer {self._token.first}"),) if self._token else None
        try:
            return method(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise self._error(error) from None

    def _error(self, error: Any) -> ServingError:
        code, message = error.code(), error.details() or ""
        if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            # The gateway's token is wrong, not the client's.
            return ServingError(grpc.StatusCode.UNAVAILABLE, f"refused by it (--upstream_token_file): {message}")
        return ServingError(code, message)
