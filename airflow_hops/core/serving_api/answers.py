"""Return values and errors of a model server's clients, whichever of its APIs they speak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_hops.core.contract.artifacts import BadInput, HopsError

if TYPE_CHECKING:  # pages and triggers import this module, and need not wait for these
    import grpc
    import numpy as np


@dataclass(frozen=True)
class PredictResult:
    """An answer.

    Attributes:
        outputs: Alias to array; strings are arrays of bytes.
        version: The version that answered.
        request_id: The id under which the request was captured, where the server names one.
    """

    outputs: dict[str, np.ndarray]
    version: int
    request_id: str | None = None


@dataclass(frozen=True)
class ClassifyResult:
    """An answer to Classify.

    Attributes:
        classes: For each example, pairs of label and score; a model that gives only one leaves the other empty or 0.
        version: The version that answered.
    """

    classes: list[list[tuple[str, float]]]
    version: int


@dataclass(frozen=True)
class RegressResult:
    """An answer to Regress: a value for each example, and the version that answered."""

    values: list[float]
    version: int


@dataclass(frozen=True)
class ModelVersion:
    """State of one version of a model.

    Attributes:
        version: Its number.
        state: START, LOADING, AVAILABLE, UNLOADING or END.
        error: Why it did not load; empty if nothing is wrong.
    """

    version: int
    state: str
    error: str = ""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a signature: TensorFlow's name of the dtype, and the shape (-1 if it is open)."""

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
    """The shares of the versions in a model's requests that name none.

    Attributes:
        percents: Version to percent, as it was set; None if the latest version answers.
        in_effect: Version to percent among the available ones, rounded: the share of a version that is not available
            goes to the others.
        persisted: Whether a restart of the server has it, as it is in the server's traffic file.
    """

    percents: dict[int, int] | None
    in_effect: dict[int, int]
    persisted: bool


class ModelServerError(HopsError):
    """The server does not answer, or has not made a version available.

    Attributes:
        code: gRPC status code.
    """

    def __init__(self, message: str, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.code = code


class RequestRefused(ModelServerError, BadInput):
    """The server refuses the request as it is, so that a retry cannot help."""


_REFUSALS = (
    "FAILED_PRECONDITION",
    "INVALID_ARGUMENT",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "UNIMPLEMENTED",
)


def error_of(address: str, code: grpc.StatusCode, details: str) -> ModelServerError:
    """Returns the error of a call, for :class:`ModelServerError` to be raised.

    Args:
        address: The server's.
        code: The call's status.
        details: The server's own words, or the connection's.
    """
    if code.name in _REFUSALS:
        return RequestRefused(f"model server {address} refuses: {code.name}: {details}", code)
    if code.name in ("DEADLINE_EXCEEDED", "UNAVAILABLE"):
        said = f"model server {address} does not answer ({code.name}: {details}); is it running?"
    else:
        said = f"model server {address} answers {code.name}: {details}"
    return ModelServerError(said, code)
