"""Has Spark's Python workers on this machine forked from the driver, which has imported TensorFlow already.

Spark's JVM starts a Python daemon, whose forks are the workers. A process that has imported the libraries already can
not become the JVM's child, so the JVM is given a program of a few lines in place of Python. It passes its standard
streams to a fork that the driver has put aside, waits for its end, and so stands for it. Where that does not work (the
JVM asks for another program, or for a second daemon), it becomes Python, and the daemon imports what it needs.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from airflow_hops.core.processes.forks import fork, receive_request, take_environment, take_streams
from airflow_hops.core.processes.garbage import uncollected

DAEMON_MODULE = "airflow_hops.ml.spark.daemon"
_PROGRAM = """#!{python} -IS
import array, json, os, socket, sys

if sys.argv[1:] == ["-m", {module!r}]:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect({path!r})
        message = json.dumps({{"env": dict(os.environ), "cwd": os.getcwd()}}).encode() + b"\\n"
        streams = array.array("i", [0, 1, 2])
        sent = connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        connection.sendall(message[sent:])
    except OSError:
        pass
    else:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        while connection.recv(1):
            pass
        sys.exit(0)
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


def fork_workers_from_here(folder: Path) -> None:
    """Puts a fork of this process aside for Spark's Python daemon; call it before anything starts a thread or Spark.

    Args:
        folder: A folder of this step, short-lived.
    """
    path = folder / "workers.sock"
    program = folder / "python"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
    except OSError:  # the path is too long for a socket
        listener.close()
        return
    listener.listen(1)
    program.write_text(_PROGRAM.format(python=sys.executable, module=DAEMON_MODULE, path=str(path)))
    program.chmod(0o700)
    fork(lambda: _await_daemon(listener, path))
    listener.close()
    os.environ["PYSPARK_PYTHON"] = str(program)


def _await_daemon(listener: socket.socket, path: Path) -> None:
    """What the fork does: waits for the streams of the daemon that it is to be, and is it."""
    # Meanwhile, so that the daemon need not: what a worker imports first.
    with uncollected():  # a worker collects garbage after every task
        import pyarrow.parquet  # noqa: F401
        import pyspark.worker  # noqa: F401
        import tfx_bsl.coders.example_coder  # noqa: F401
        from pyspark.daemon import manager

    connection, _ = listener.accept()
    path.unlink()
    listener.close()
    request, streams = receive_request(connection, 3)
    take_streams(*streams)
    take_environment(request["env"], request["cwd"])
    given = [entry for entry in request["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*(entry for entry in given if entry not in sys.path), *sys.path]
    leave_out_archives()
    manager()


def leave_out_archives() -> None:
    """Takes the archives of an installed PySpark off the path: a worker would read their contents before every task."""
    # An overlay's PySpark lies in the environment below it.
    installed = [Path(entry).resolve() / "pyspark" for entry in sys.path if entry.endswith("site-packages")]

    def is_archive(entry: str) -> bool:
        path = Path(entry)
        return path.is_file() and any(path.resolve().is_relative_to(folder) for folder in installed)

    sys.path[:] = [entry for entry in sys.path if not is_archive(entry)]
    for entry in filter(is_archive, list(sys.path_importer_cache)):
        del sys.path_importer_cache[entry]
