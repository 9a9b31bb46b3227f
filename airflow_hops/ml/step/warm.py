"""Warm process: imports TensorFlow and TFDV once, and forks a child for each step.

Importing the ML libraries takes seconds, a fork milliseconds. The process imports libraries but does not use them, so
that they are in a child's interpreter as in a new one after its imports.

Protocol, on a Unix socket that only its owner can open: a client sends one JSON line with the step's ``spec``, ``env``
and ``cwd``, and the write end of a pipe as ancillary data. It reads one line with the child's ``pid``, replies ``go``,
which starts the step, and reads one line with the child's wait ``status`` when it has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import STAGES, extensions
from airflow_hops.core.processes.ending import children, send_signal
from airflow_hops.core.processes.forks import GO, Children, receive_request, take_streams, take_variables
from airflow_hops.core.processes.lifetime import adopt_orphans
from airflow_hops.core.processes.programs import PATH_ENTRY

# States of a step: requested (request and pipe received) → forked (pid sent) → going (client has replied) → ended
# (status sent). A client that does not get a pid in time closes the connection and starts the step itself; the fork
# then reads no `go` and exits, so the step never runs twice.
# - The client's output pipe is the step's standard output: it ends when the step and its descendants have closed it.
# - A kill of this process also kills its running steps (by the parent-death signal of their forks); a worker sees the
#   closed connection without a status.
# - A new warm process replaces the socket by a rename. The old one notices another inode, serves its running steps, and
#   ends. Both may run at once; each removes only its own socket.
# - A step adopts its orphans. What it leaves behind when it ends becomes a child of this process, which sends SIGTERM,
#   and after 10 s SIGKILL; until then the process does not end.

WARM_MODULES = (
    "numpy",
    "pandas",
    "pyarrow.parquet",
    "pyarrow.dataset",
    "tensorflow",
    "tensorflow_data_validation",
    "horovod.tensorflow",
    "keras",
    "pyspark.sql.functions",
    "duckdb",
    "mlflow.tracking",
    "mlflow.store.tracking.sqlalchemy_store",
    "mlflow.store.model_registry.sqlalchemy_store",
    "grpc",
    "tensorflow_serving.apis.prediction_service_pb2_grpc",
    "tensorflow_serving.apis.model_service_pb2_grpc",
)
_PATIENCE_S = 10.0


class WarmProcess:
    """Listens on a socket and forks steps.

    Args:
        path: The socket's path; its folder becomes readable by its owner only.
        idle_timeout_s: Seconds without a step after which the process ends.
    """

    def __init__(self, path: Path, idle_timeout_s: float) -> None:
        self.path, self.idle_timeout_s = path, idle_timeout_s
        self._children = Children()
        self._clients: dict[int, socket.socket] = {}
        self._left_behind: dict[int, float] = {}  # time by which each is killed
        self._last_used = time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        staging = path.with_name(f"{path.name}.{os.getpid()}")
        self._listener.bind(str(staging))
        staging.chmod(0o600)
        self._listener.listen(16)
        staging.rename(path)  # clients can connect from here on
        self._inode = path.stat().st_ino
        adopt_orphans()  # processes that a step leaves behind become children of this process
        self._own = set(children(os.getpid()))

    def serve(self) -> None:
        """Forks steps until no step was requested for the idle time-out, or the socket was removed."""
        self._children.serve(self._listener, self._accept, self._reap, self._goes_on)
        if self._is_current():
            self.path.unlink(missing_ok=True)

    def _goes_on(self) -> bool:
        is_idle = time.monotonic() - self._last_used >= self.idle_timeout_s
        return bool(self._clients or self._left_behind) or (self._is_current() and not is_idle)

    def _is_current(self) -> bool:
        try:
            return self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def _accept(self) -> None:
        self._last_used = time.monotonic()
        self._start(self._listener.accept()[0])

    def _start(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        try:
            request, (output,) = receive_request(connection, 1)
        except (OSError, ValueError):  # the client is gone; running steps continue
            connection.close()
            return

        def step() -> int:
            self._listener.close()
            return _run_step(request, output, connection)

        try:
            pid = self._children.fork(step)
        except OSError:  # fork failed: no room for another process
            connection.close()
            return
        finally:
            os.close(output)
        self._clients[pid] = connection
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps({"pid": pid}).encode() + b"\n")

    def _reap(self) -> None:
        for pid, status in self._children.take_ended():
            with self._clients.pop(pid) as connection, contextlib.suppress(OSError):
                connection.sendall(json.dumps({"status": status}).encode() + b"\n")
        # A running step adopts its own orphans, so any other child was left behind by a step that has ended.
        for pid in set(children(os.getpid())) - self._own - self._clients.keys():
            if pid not in self._left_behind:
                self._left_behind[pid] = time.monotonic() + _PATIENCE_S
                send_signal(pid, signal.SIGTERM)  # lets a JVM remove Spark's spilled files
            elif time.monotonic() > self._left_behind[pid]:
                send_signal(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._left_behind[pid]


def _run_step(request: Mapping[str, Any], output: int, connection: socket.socket) -> int:
    """Runs a step in a forked process."""
    os.setsid()
    # A client that gave up waiting starts the step itself; waiting for its go prevents a second run.
    if connection.recv(len(GO)) != GO:
        return 1
    connection.close()
    take_streams(os.open(os.devnull, os.O_RDONLY), output, output)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    take_variables(request["env"], request["cwd"])
    if "numpy" in sys.modules:
        # NumPy 1.26 (numpy/numpy#9650): its global generator is not reseeded in a fork: steps would draw the same
        # numbers.
        sys.modules["numpy"].random.seed()
    # The step uses the package that its operator was imported from, which may not be the one of this process.
    paths = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = paths + [path for path in sys.path if not (Path(path) / "airflow_hops").exists()]
    if paths[:1] != [PATH_ENTRY]:
        for name in [name for name in sys.modules if name.partition(".")[0] == "airflow_hops"]:
            del sys.modules[name]
    importlib.invalidate_caches()
    code: int = importlib.import_module("airflow_hops.ml.__main__").main([request["spec"]], started=time.time())
    return code


def main(arguments: list[str] | None = None) -> None:
    """Imports the libraries, and forks steps on request."""
    parser = argparse.ArgumentParser(prog="python -m airflow_hops.ml.step.warm", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="path of the Unix socket")
    parser.add_argument("--idle-timeout-s", type=float, default=300.0, help="end after so many seconds without a step")
    options = parser.parse_args(arguments)
    modules = [*WARM_MODULES, "airflow_hops.ml.__main__"]
    with contextlib.suppress(BadInput):  # two distributions register the same stage; steps report this
        modules += [stage.value.partition(":")[0] for stage in extensions(STAGES).values()]
    for module in modules:
        # A module that fails to import here fails again, with a message, in the step that needs it.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a full collection in a fork would copy all shared memory pages
    WarmProcess(options.socket, options.idle_timeout_s).serve()


if __name__ == "__main__":
    main()
