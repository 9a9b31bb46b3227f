"""The warm process: imports TensorFlow and TFDV once, and forks a child for each step.

Importing the ML libraries costs seconds, a fork milliseconds. The process is single-threaded where it matters: it
imports and runs nothing, so that a child finds the libraries as a fresh interpreter would after its imports.

The protocol, on a Unix socket that only its owner can open: a client sends one JSON line with the step's ``spec``,
``env`` and ``cwd``, and the write end of a pipe as ancillary data; it reads one line with the child's ``pid``, answers
``go``, upon which the step begins, and reads one line with the child's wait ``status`` when it has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.extensions import STAGES, extensions
from airflow_hops.core.processes.ending import children, send_signal
from airflow_hops.core.processes.forks import (
    GO,
    Children,
    receive_request,
    take_environment,
    take_streams,
)
from airflow_hops.core.processes.lifetime import adopt_orphans
from airflow_hops.core.processes.programs import PATH_ENTRY

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
    "mlflow.tracking",
    "mlflow.store.tracking.sqlalchemy_store",
    "mlflow.store.model_registry.sqlalchemy_store",
    "grpc",
    "tensorflow_serving.apis.prediction_service_pb2_grpc",
    "tensorflow_serving.apis.model_service_pb2_grpc",
)
RARE = {"import_model", "notebook", "search"}
"""Stages that few pipelines have, and that import large libraries or start threads."""
_PATIENCE_S = 10.0


class WarmProcess:
    """Listens on a socket and forks steps.

    Args:
        path: The socket's path; its folder is made readable by its owner alone.
        idle_timeout_s: Seconds without a step after which the process ends.
    """

    def __init__(self, path: Path, idle_timeout_s: float) -> None:
        self.path, self.idle_timeout_s = path, idle_timeout_s
        self._children = Children()
        self._clients: dict[int, socket.socket] = {}
        self._left_behind: dict[int, float] = {}  # when each is killed
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        staging = path.with_name(f"{path.name}.{os.getpid()}")
        self._listener.bind(str(staging))
        staging.chmod(0o600)
        self._listener.listen(16)
        staging.rename(path)  # from here on clients find it, and it is ready
        self._inode = path.stat().st_ino
        adopt_orphans()  # what a step leaves behind becomes a child of this process when the step has ended
        self._own = set(children(os.getpid()))

    def serve(self) -> None:
        """Forks steps until nobody has asked for one for the idle time-out, or the socket is gone."""
        last_used = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._children, selectors.EVENT_READ)
            while self._is_busy() or time.monotonic() - last_used < self.idle_timeout_s:
                for key, _ in selector.select(timeout=1.0):
                    if key.fileobj is self._listener:
                        connection, _ = self._listener.accept()
                        self._start(connection)
                        last_used = time.monotonic()
                self._reap()
                if not self._is_current() and not self._is_busy():
                    return
        if self._is_current():
            self.path.unlink(missing_ok=True)

    def _is_busy(self) -> bool:
        return bool(self._clients or self._left_behind)

    def _is_current(self) -> bool:
        try:
            return self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def _start(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        try:
            request, (output,) = receive_request(connection, 1)
        except (OSError, ValueError):  # no step of this client's; those that run go on
            connection.close()
            return

        def step() -> int:
            self._listener.close()
            return _run_step(request, output, connection)

        try:
            pid = self._children.fork(step)
        except OSError:  # there is no room for another process
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
        # A step adopts its own orphans while it lives: any other child was left behind by one that has ended.
        for pid in set(children(os.getpid())) - self._own - self._clients.keys():
            if pid not in self._left_behind:
                self._left_behind[pid] = time.monotonic() + _PATIENCE_S
                send_signal(pid, signal.SIGTERM)  # a JVM removes what Spark has spilled
            elif time.monotonic() > self._left_behind[pid]:
                send_signal(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._left_behind[pid]


def _run_step(request: Mapping[str, Any], output: int, connection: socket.socket) -> int:
    """Turns a fork into a step, and runs it."""
    os.setsid()
    # A client that has given up waiting starts the step by itself: without its word, nothing is run twice.
    if connection.recv(len(GO)) != GO:
        return 1
    connection.close()
    take_streams(os.open(os.devnull, os.O_RDONLY), output, output)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    take_environment(request["env"], request["cwd"])
    if "numpy" in sys.modules:
        # Python's own generator starts anew in a fork, NumPy's global one does not: steps would draw alike.
        sys.modules["numpy"].random.seed()
    # The step runs the package that its operator was imported from, not the one that this process was started with.
    paths = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = paths + [path for path in sys.path if not (Path(path) / "airflow_hops").exists()]
    if paths[:1] != [PATH_ENTRY]:
        for name in [name for name in sys.modules if name.partition(".")[0] == "airflow_hops"]:
            del sys.modules[name]
    importlib.invalidate_caches()
    code: int = importlib.import_module("airflow_hops.ml.__main__").main([request["spec"]], started=time.time())
    return code


def main(arguments: list[str] | None = None) -> None:
    """Imports the libraries, listens, forks."""
    parser = argparse.ArgumentParser(prog="python -m airflow_hops.ml.step.warm", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="path of the Unix socket")
    parser.add_argument("--idle-timeout-s", type=float, default=300.0, help="end after so many seconds without a step")
    options = parser.parse_args(arguments)
    modules = [*WARM_MODULES, "airflow_hops.ml.__main__"]
    with contextlib.suppress(BadInput):  # two distributions have a stage of one name: steps say so
        modules += [stage.value.partition(":")[0] for name, stage in extensions(STAGES).items() if name not in RARE]
    for module in modules:
        # A module that fails here fails again, with a message, in the step that needs it.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a full collection in a fork would copy all that it shares
    WarmProcess(options.socket, options.idle_timeout_s).serve()


if __name__ == "__main__":
    main()
