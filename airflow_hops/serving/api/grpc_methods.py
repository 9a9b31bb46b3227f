"""Builds gRPC methods from functions that may raise ServingError, and checks the tokens of calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from airflow_hops.serving.access import RIGHTS, Access, authorization_of, right_of
from airflow_hops.serving.errors import ServingError, invalid_argument

log = logging.getLogger(__name__)


def unary(answer: Callable[[Any, grpc.ServicerContext], Any], request_class: Any) -> grpc.RpcMethodHandler:
    """Returns the handler of a method with one request and one response.

    Args:
        answer: Takes the request and gRPC's context and returns the response; may raise ServingError.
        request_class: Message class of the request; messages that do not parse are refused as INVALID_ARGUMENT.
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


def service(name: str, methods: Mapping[str, grpc.RpcMethodHandler]) -> grpc.GenericRpcHandler:
    """Returns the gRPC handler of a service; raises LookupError if the table of rights lacks a method."""
    for method in methods:
        right_of(f"/{name}/{method}")
    return grpc.method_handlers_generic_handler(name, methods)


class TokenGuard(grpc.ServerInterceptor):
    """Refuses calls without a token for the right that they need.

    Attributes:
        rights: The right that each RPC requires, by its path; those of parts are added.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self.rights = dict(RIGHTS)

    def intercept_service(
        self, continuation: Callable[[Any], grpc.RpcMethodHandler | None], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """Returns the called method, or one that refuses the call."""
        handler = continuation(details)
        if handler is None:
            return None
        try:
            self._access.check(self.rights[details.method], authorization_of(details.invocation_metadata))
        except ServingError as error:
            refused = error
        else:
            return handler

        def refuse(message: bytes, context: grpc.ServicerContext) -> None:
            context.abort(refused.code, refused.message)

        return grpc.unary_unary_rpc_method_handler(refuse)
