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
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

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
GO = b"go"
"""What the client answers to the pid, upon which the step begins."""
_MESSAGE_BYTES = 1 << 20
_PATIENCE_S = 10.0


class WarmProcess:
    """Listens on a socket and forks steps.

    Args:
        path: The socket's path; its folder is made readable by its owner alone.
        idle_timeout_s: Seconds without a step after which the process ends.
    """

    def __init__(self, path: Path, idle_timeout_s: float) -> None:
        self.path, self.idle_timeout_s = path, idle_timeout_s
        self._children: dict[int, socket.socket] = {}
        self._left_behind: dict[int, float] = {}  # when each is killed
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        staging = path.with_name(f"{path.name}.{os.getpid()}")
        self._listener.bind(str(staging))
        staging.chmod(0o600)
        self._listener.listen(16)
        staging.rename(path)  # from here on clients find it, and it is ready
        self._inode = path.stat().st_ino
        # What a step leaves behind becomes a child of this process when the step has ended; see _reap().
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        self._own = set(_children())

    def serve(self) -> None:
        """Forks steps until nobody has asked for one for the idle time-out, or the socket is gone."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        last_used = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while self._is_busy() or time.monotonic() - last_used < self.idle_timeout_s:
                for key, _ in selector.select(timeout=1.0):
                    if key.fileobj is self._listener:
                        connection, _ = self._listener.accept()
                        self._start(connection)
                        last_used = time.monotonic()
                    else:
                        with contextlib.suppress(BlockingIOError):
                            os.read(wake_read, 4096)
                self._reap()
                if not self._is_current() and not self._is_busy():
                    return
        if self._is_current():
            self.path.unlink(missing_ok=True)

    def _is_busy(self) -> bool:
        return bool(self._children or self._left_behind)

    def _is_current(self) -> bool:
        try:
            return self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def _start(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        descriptors: list[int] = []
        try:
            message, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 1)
            while not message.endswith(b"\n"):
                more = connection.recv(_MESSAGE_BYTES)
                if not more:
                    raise ConnectionError("the client closed before it had said what to run")
                message += more
            request = json.loads(message)
            (output,) = descriptors
            pid = os.fork()
        except (OSError, ValueError):  # no step of this client's; those that run go on
            for descriptor in descriptors:
                os.close(descriptor)
            connection.close()
            return
        if pid == 0:
            self._listener.close()
            _become_step(request, output, connection)
        os.close(output)
        self._children[pid] = connection
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps({"pid": pid}).encode() + b"\n")

    def _reap(self) -> None:
        for pid in list(self._children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                connection = self._children.pop(pid)
                with contextlib.suppress(OSError):
                    connection.sendall(json.dumps({"status": status}).encode() + b"\n")
                connection.close()
        # A step adopts its own orphans while it lives: any other child was left behind by one that has ended.
        for pid in set(_children()) - self._own - self._children.keys():
            with contextlib.suppress(OSError):
                if pid not in self._left_behind:
                    self._left_behind[pid] = time.monotonic() + _PATIENCE_S
                    os.kill(pid, signal.SIGTERM)  # a JVM removes what Spark has spilled
                elif time.monotonic() > self._left_behind[pid]:
                    os.kill(pid, signal.SIGKILL)
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._left_behind[pid]


def _children() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def _become_step(request: dict[str, object], output: int, connection: socket.socket) -> None:
    """Turns a forked child into a step; never returns."""
    code = 1
    try:
        os.setsid()
        _die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A client that has given up waiting starts the step by itself: without its word, nothing is run twice.
        if connection.recv(len(GO)) != GO:
            os._exit(1)
        connection.close()
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        environment = {str(name): str(value) for name, value in dict(request["env"]).items()}  # type: ignore[call-overload]
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        tempfile.tempdir = None  # which an import had it look up already: the step may have another TMPDIR
        if "numpy" in sys.modules:
            # Python's own generator starts anew in a fork, NumPy's global one does not: steps would draw alike.
            sys.modules["numpy"].random.seed()
        os.chdir(str(request["cwd"]))
        # The step runs the package that its operator was imported from, not the one that this process was started with.
        paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        sys.path[:] = paths + [path for path in sys.path if not (Path(path) / "airflow_hops").exists()]
        for name in [name for name in sys.modules if name.partition(".")[0] == "airflow_hops"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        main = importlib.import_module("airflow_hops.runtime.__main__").main
        code = main([str(request["spec"])], started=time.time())
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _die_with_parent() -> None:
    # Nobody could read the exit status of a step that outlived the warm process.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def main(arguments: list[str] | None = None) -> None:
    """Imports the libraries, listens, forks."""
    parser = argparse.ArgumentParser(prog="warm.py", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="path of the Unix socket")
    parser.add_argument("--idle-timeout-s", type=float, default=300.0, help="end after so many seconds without a step")
    given = parser.parse_args(arguments)
    for module in WARM_MODULES:
        # A module that fails here fails again, and speaks for itself, in the step that needs it.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what is shared with the children stays shared
    WarmProcess(given.socket, given.idle_timeout_s).serve()


if __name__ == "__main__":
    main()
