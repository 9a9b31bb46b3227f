"""gRPC methods from functions that take a message and may raise ServingError."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from airflow_hops.serving.errors import MAX_MESSAGE_CHARS, ServingError

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
            context.abort(error.code, error.message)
        except DecodeError:
            name = request_class.DESCRIPTOR.name
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"The message does not parse as a {name}")
        except Exception as error:
            log.exception("%s failed", request_class.DESCRIPTOR.name)
            context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"[:MAX_MESSAGE_CHARS])

    return grpc.unary_unary_rpc_method_handler(call)
