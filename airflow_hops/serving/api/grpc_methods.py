"""gRPC methods from functions that take a message and may raise ServingError."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from airflow_hops.serving.errors import ServingError, invalid_argument

log = logging.getLogger(__name__)


def unary(answer: Callable[[Any, grpc.ServicerContext], Any], request_class: Any) -> grpc.RpcMethodHandler:
    """Returns a method of one request and one answer.

    Args:
        answer: Given the request and gRPC's context, returns the response; may raise ServingError.
        request_class: The request's message. What does not parse as one is refused as INVALID_ARGUMENT.
    """

    def call(message: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            response: bytes = answer(request_class.FromString(message), context).SerializeToString()
            return response
        except ServingError as error:
            refused = error
        except DecodeError:
            refused = invalid_argument(f"The message does not parse as a {request_class.DESCRIPTOR.name}")
        except Exception as error:
            log.exception("%s failed", request_class.DESCRIPTOR.name)
            refused = ServingError(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
        context.abort(refused.code, refused.message)
        raise AssertionError("abort does not return")

    return grpc.unary_unary_rpc_method_handler(call)
