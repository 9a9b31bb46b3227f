"""The server's error type, which carries a gRPC status code."""

from __future__ import annotations

import time

import grpc

# TensorFlow Serving cuts messages at this length, so that an error never returns a huge input.
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
# Errors for which a retry cannot help. Operations of a model's graph raise them, too, for invalid inputs.
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
    """The server cannot start; the message gives the reason in one line."""


class ServingError(Exception):
    """A failed request or load, with the status code for the client.

    Args:
        code: gRPC status code.
        message: Text for the client; cut to 1,024 characters.

    Attributes:
        http_status: The HTTP status of the code in TensorFlow Serving's REST API.
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message[:MAX_MESSAGE_CHARS]
        self.http_status = _HTTP_STATUS.get(code, 500)

    def __reduce__(self) -> tuple[object, ...]:
        """Sends only code and message to another process, even for subclasses."""
        return ServingError, (self.code, self.message)

    @classmethod
    def of_number(cls, number: int, message: str) -> ServingError:
        """Returns the error of a ``tensorflow.error.Code``."""
        return cls(code_of(number), message)

    @property
    def number(self) -> int:
        """The code as a number of ``tensorflow.error.Code``, which gRPC shares."""
        return int(self.code.value[0])


def too_large(message: str) -> ServingError:
    """Returns the error for a request that is too large by itself: HTTP status 413, since a retry cannot help."""
    error = ServingError(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
    error.http_status = 413
    return error


def deadline_exceeded() -> ServingError:
    """Returns the error for an answer that is too late."""
    return ServingError(grpc.StatusCode.DEADLINE_EXCEEDED, "Timed out waiting for notification")


def check_deadline(deadline_s: float) -> None:
    """Raises ServingError (DEADLINE_EXCEEDED) if the client's deadline, as of ``time.monotonic()``, has passed."""
    if time.monotonic() >= deadline_s:
        raise deadline_exceeded()


def invalid_argument(message: str) -> ServingError:
    """Returns the error for an invalid request."""
    return ServingError(grpc.StatusCode.INVALID_ARGUMENT, message)


def not_found(message: str) -> ServingError:
    """Returns the error for a model, version or label that does not exist."""
    return ServingError(grpc.StatusCode.NOT_FOUND, message)


def code_of(number: int) -> grpc.StatusCode:
    """Returns the gRPC code of a TensorFlow error number; the two enumerations agree."""
    return _CODE_BY_NUMBER.get(number, grpc.StatusCode.UNKNOWN)
