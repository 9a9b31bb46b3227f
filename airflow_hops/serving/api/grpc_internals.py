"""Private parts of grpcio that the server uses, named in one place and checked before the server starts."""

from __future__ import annotations

from importlib.metadata import version
from operator import attrgetter

__all__ = ["KNOWN", "STARTED", "STATUS_NUMBERS", "check_server", "cygrpc", "serve"]

KNOWN = "1.85"
"""The grpcio version with which these parts were last tested."""

_SERVER_PARTS = (
    "start",
    "_cy_server.register_method",
    "_state.lock",
    "_state.stage",
    "_state.rpc_states.add",
    "_state.completion_queue",
    "_state.server.request_registered_call",
)
_CYGRPC_PARTS = (
    "ReceiveMessageOperation",
    "ReceiveCloseOnServerOperation",
    "SendInitialMetadataOperation",
    "SendMessageOperation",
    "SendStatusFromServerOperation",
    "StatusCode.ok",
)


def unknown_grpc(missing: object) -> ImportError:
    """Returns the error of a grpcio that lacks a private part that the server uses."""
    return ImportError(
        f"grpcio {version('grpcio')} is not as this server needs it ({missing}): calls are answered by parts "
        f"of it that are not public, tried with {KNOWN}. Install the version of the runtime environment's pins."
    )


def check_parts(whole: object, parts: tuple[str, ...]) -> None:
    """Raises ImportError if an object lacks one of the attributes."""
    try:
        for part in parts:
            attrgetter(part)(whole)
    except AttributeError as error:
        raise unknown_grpc(error) from error


def check_server(server: object) -> None:
    """Raises ImportError if a gRPC server lacks one of the private parts used here."""
    check_parts(server, _SERVER_PARTS)


try:
    from grpc._common import STATUS_CODE_TO_CYGRPC_STATUS_CODE as STATUS_NUMBERS
    from grpc._cython import cygrpc
    from grpc._server import _serve as serve
    from grpc._server import _ServerStage

    STARTED = _ServerStage.STARTED
except (ImportError, AttributeError) as error:
    raise unknown_grpc(error) from error
check_parts(cygrpc, _CYGRPC_PARTS)
