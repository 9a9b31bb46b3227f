"""Private parts of grpcio that the server needs: named in one place, and checked before anything is served."""

from __future__ import annotations

from importlib.metadata import version
from operator import attrgetter
from typing import Any

__all__ = ["KNOWN", "STARTED", "STATUS_NUMBERS", "UnknownGrpc", "check_server", "cygrpc"]

KNOWN = "1.85"
"""The grpcio that these parts were last tried with."""

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


class UnknownGrpc(ImportError):
    """A grpcio without the parts that are needed."""

    def __init__(self, missing: object) -> None:
        super().__init__(
            f"grpcio {version('grpcio')} is not as this server needs it ({missing}): calls are answered by parts "
            f"of it that are not public, tried with {KNOWN}. Install the version that requirements/runtime.txt pins."
        )


def check_parts(whole: Any, parts: tuple[str, ...]) -> None:
    """Makes sure that the parts are there.

    Raises:
        UnknownGrpc: One is not.
    """
    try:
        for part in parts:
            attrgetter(part)(whole)
    except AttributeError as error:
        raise UnknownGrpc(error) from error


def check_server(server: Any) -> None:
    """Makes sure that a gRPC server has the parts that are needed.

    Raises:
        UnknownGrpc: One is not there.
    """
    check_parts(server, _SERVER_PARTS)


try:
    from grpc._common import STATUS_CODE_TO_CYGRPC_STATUS_CODE as STATUS_NUMBERS
    from grpc._cython import cygrpc
    from grpc._server import _ServerStage

    STARTED = _ServerStage.STARTED
except (ImportError, AttributeError) as error:
    raise UnknownGrpc(error) from error
check_parts(cygrpc, _CYGRPC_PARTS)
