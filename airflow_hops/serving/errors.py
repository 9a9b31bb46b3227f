"""The one error type that carries a gRPC status code through the server."""

from __future__ import annotations

import time
from typing import Any

import grpc

# TensorFlow Serving cuts messages here, so that a huge input never comes back inside its own error.
MAX_MESSAGE_CHARS = 1024

_HTTP_STATUS = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
# What tells a client that its request cannot be answered as it is, whenever it is sent. An operation of the model's
# graph may say so, too: of inputs that it cannot take.
CLIENT_ERRORS = frozenset(
    code.name
    for code in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND,
    )
)
_CODE_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


class StartError(Exception):
    """The server cannot start; the message says why, in one line for the user."""


class ServingError(Exception):
    """A request or a load that failed, with the status code that the client sees.

    Args:
        code: gRPC status code.
        message: What the client reads; cut to 1,024 characters.
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message[:MAX_MESSAGE_CHARS]

    def __reduce__(self) -> tuple[Any, ...]:
        """As another process gets it: code and message, whichever class it is here."""
        return ServingError, (self.code, self.message)

    @classmethod
    def of_number(cls, number: int, message: str) -> ServingError:
        """Returns the error of a ``tensorflow.error.Code``."""
        return cls(code_of(number), message)

    @property
    def number(self) -> int:
        """The code as the number that ``tensorflow.error.Code`` and gRPC share."""
        return int(self.code.value[0])

    @property
    def http_status(self) -> int:
        """The HTTP status that TensorFlow Serving's REST API gives this code."""
        return _HTTP_STATUS.get(self.code, 500)


class TooLargeError(ServingError):
    """A request that is too large by itself: unlike others that are RESOURCE_EXHAUSTED, it need not be tried again."""

    def __init__(self, message: str) -> None:
        super().__init__(grpc.StatusCode.RESOURCE_EXHAUSTED, message)

    @property
    def http_status(self) -> int:
        """Content Too Large."""
        return 413


def deadline_exceeded() -> ServingError:
    """Returns the error for an answer that comes too late."""
    return ServingError(grpc.StatusCode.DEADLINE_EXCEEDED, "Timed out waiting for notification")


def check_deadline(deadline_s: float) -> None:
    """Raises ServingError (DEADLINE_EXCEEDED) once nobody waits for an answer.

    Args:
        deadline_s: When the client gives up, as of ``time.monotonic()``.
    """
    if time.monotonic() >= deadline_s:
        raise deadline_exceeded()


def invalid_argument(message: str) -> ServingError:
    """Returns the error for a request that is wrong in itself."""
    return ServingError(grpc.StatusCode.INVALID_ARGUMENT, message)


def not_found(message: str) -> ServingError:
    """Returns the error for a model, version or label that is not there."""
    return ServingError(grpc.StatusCode.NOT_FOUND, message)


def code_of(number: int) -> grpc.StatusCode:
    """Returns the gRPC code of a TensorFlow error number (the two enumerations agree)."""
    return _CODE_BY_NUMBER.get(number, grpc.StatusCode.UNKNOWN)
