"""Return values and errors of a model server's clients, for both APIs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_hops.core.errors import BadInput, HopsError, ServerUnreachable

if TYPE_CHECKING:  # slow imports, which pages and triggers do not need
    import grpc
    import numpy as np


@dataclass(frozen=True)
class PredictResult:
    """An answer to Predict.

    Attributes:
        outputs: Alias to array; strings are arrays of bytes.
        version: The version that answered.
        request_id: Id under which the request was captured; None if the server does not return one.
    """

    outputs: dict[str, np.ndarray]
    version: int
    request_id: str | None = None


@dataclass(frozen=True)
class ModelVersion:
    """State of one version of a model.

    Attributes:
        version: Version number.
        state: START, LOADING, AVAILABLE, UNLOADING or END.
        error: Reason of a failed load; empty if the load did not fail.
    """

    version: int
    state: str
    error: str = ""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a signature: TensorFlow's name of the dtype, and the shape (-1 for open dimensions)."""

    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class SignatureSpec:
    """Inputs and outputs of a signature by alias."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


@dataclass(frozen=True)
class ModelMetadata:
    """Inputs and outputs of a version of a model."""

    model: str
    version: int
    signatures: dict[str, SignatureSpec]


@dataclass(frozen=True)
class TrafficSplit:
    """Shares of the versions in the requests that name only the model.

    Attributes:
        percents: Version to percent, as configured; None if the latest version answers.
        in_effect: Version to rounded percent among the available versions: the share of an unavailable version goes to
            the others.
        persisted: Whether the split is in the server's traffic file, and so survives a restart.
    """

    percents: dict[int, int] | None
    in_effect: dict[int, int]
    persisted: bool


_SILENT = ("DEADLINE_EXCEEDED", "UNAVAILABLE")


class ModelServerError(HopsError):
    """The server does not respond, or has not made a version available; ``code`` is the gRPC status code.

    Example:
        >>> import grpc
        >>> from airflow_hops import ModelServerError
        >>> ModelServerError("model 'flights' is not served", grpc.StatusCode.NOT_FOUND).code.name
        'NOT_FOUND'
    """

    def __init__(self, message: str, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.code = code
        if code.name in _SILENT:
            self.cause = "unreachable"


class ModelServerUnreachable(ModelServerError, ServerUnreachable):
    """The server does not answer."""

    def __init__(self, message: str, code: grpc.StatusCode, address: str) -> None:
        ServerUnreachable.__init__(self, address, message)
        self.code, self.cause = code, "unreachable"


class RequestRefused(ModelServerError, BadInput):
    """The server refuses the request, and would refuse a retry, too."""


_REFUSALS = (
    "FAILED_PRECONDITION",
    "INVALID_ARGUMENT",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "UNIMPLEMENTED",
)


def error_of(address: str, code: grpc.StatusCode, details: str) -> ModelServerError:
    """Returns the exception for a failed call: its status, and the message of the server or connection."""
    if code.name in _REFUSALS:
        return RequestRefused(f"model server {address} refuses: {code.name}: {details}", code)
    if code.name in _SILENT:
        message = f"model server {address} does not answer ({code.name}: {details}); is it running?"
        return ModelServerUnreachable(message, code, address)
    return ModelServerError(f"model server {address} answers {code.name}: {details}", code)
