"""TensorFlow's ``ProfilerService`` on the server's own gRPC port, for TensorBoard to capture profiles."""

from __future__ import annotations

import logging
import shutil
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import grpc

from airflow_hops.core.serving_api.protocol import PROFILER_SERVICE, ProfileRequest, ProfileResponse, TerminateRequest
from airflow_hops.serving.api.grpc_methods import service
from airflow_hops.serving.errors import ServingError, invalid_argument

log = logging.getLogger(__name__)

_POLL_S = 0.05


class ProfilerService:
    """Profiles this process on request, as TensorFlow's own profiler server does.

    Writes the profile to ``<repository_root>/<session_id>/<host_name>.xplane.pb`` on this machine; client and server
    share that folder, as with TensorFlow's server, which does not implement ``Monitor`` either.

    Args:
        log_dir: Folder that all profiles must be below.
    """

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir.resolve()
        self._running = threading.Lock()
        self._terminated = threading.Event()

    def handlers(self) -> Any:
        """Returns the handlers for a gRPC server."""
        methods = {
            "Profile": grpc.unary_unary_rpc_method_handler(
                self._profile,
                request_deserializer=ProfileRequest.FromString,
                response_serializer=ProfileResponse.SerializeToString,
            ),
            "Terminate": grpc.unary_unary_rpc_method_handler(
                self._terminate, request_deserializer=TerminateRequest.FromString
            ),
            "Monitor": grpc.unary_unary_rpc_method_handler(_monitor),
        }
        return service(PROFILER_SERVICE, methods)

    def _profile(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            folder = self._folder(request)
        except ServingError as error:
            context.abort(error.code, error.message)
        if not self._running.acquire(blocking=False):
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "Another profiler is running.")
        try:
            return self._run(request, folder, context)
        except OSError as error:
            context.abort(grpc.StatusCode.INTERNAL, f"the profile cannot be written: {error}")
        finally:
            self._running.release()

    def _folder(self, request: Any) -> Path:
        """Returns the session's folder; resolves links before checking that it is below ``log_dir``."""
        root = Path(request.repository_root)
        are_names = _is_name(request.session_id) and _is_name(request.host_name)
        if not root.is_absolute() or "\0" in request.repository_root or not are_names:
            raise invalid_argument(
                f"repository_root {request.repository_root!r}, session_id {request.session_id!r}, host_name "
                f"{request.host_name!r}: expected an absolute path and two names"
            )
        folder: Path = (root / request.session_id).resolve()
        if not folder.is_relative_to(self._log_dir):
            raise invalid_argument(
                f"repository_root {request.repository_root!r}, session_id {request.session_id!r}: this is {folder}; "
                f"expected a folder below --profiler_log_dir={self._log_dir}"
            )
        return folder

    def _run(self, request: Any, folder: Path, context: grpc.ServicerContext) -> Any:
        from tensorflow.python.framework.errors_impl import OpError
        from tensorflow.python.profiler import profiler_v2 as profiler

        self._terminated.clear()
        folder.mkdir(parents=True, exist_ok=True)
        staging = folder / f".{uuid.uuid4().hex}"
        wanted = request.opts
        options = profiler.ProfilerOptions(
            host_tracer_level=wanted.host_tracer_level,
            python_tracer_level=wanted.python_tracer_level,
            device_tracer_level=wanted.device_tracer_level,
        )
        log.info("profiling for %d ms", request.duration_ms)
        try:
            profiler.start(str(staging), options)
            until_s = time.monotonic() + request.duration_ms / 1e3
            while (left_s := until_s - time.monotonic()) > 0 and context.is_active():
                if self._terminated.wait(min(left_s, _POLL_S)):
                    break
            profiler.stop()
            result = next(staging.rglob("*.xplane.pb"), None)
            if result is None:
                return ProfileResponse(empty_trace=True)
            result.replace(folder / f"{request.host_name.replace(':', '_')}.xplane.pb")
            return ProfileResponse()
        except OpError as error:
            context.abort(grpc.StatusCode.INTERNAL, error.message)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _terminate(self, request: Any, context: grpc.ServicerContext) -> bytes:
        """Ends the running profile."""
        self._terminated.set()
        return b""


def _is_name(text: str) -> bool:
    return bool(text) and "/" not in text and "\0" not in text and text not in (".", "..")


def _monitor(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNIMPLEMENTED, "unimplemented.")
    return b""
