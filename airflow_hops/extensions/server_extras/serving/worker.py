"""The worker process: a server with a share of the limits, whose ports and files other workers share."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import signal
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_hops.extensions.server_extras.serving.flags import ExtraFlags
from airflow_hops.serving import log_lines
from airflow_hops.serving.errors import StartError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.keras_import import without_keras
from airflow_hops.serving.models.memory import set_imports_apart


@dataclass(frozen=True)
class WorkerAssignment:
    """The input of a new worker.

    Attributes:
        flags: Flags of the worker.
        folder: Folder of :class:`~airflow_hops.extensions.server_extras.serving.shared.Shared`.
        slot: Its slot.
        started_at: Start of the server, in seconds since 1970.
    """

    flags: Flags
    folder: Path
    slot: int
    started_at: float


def threads_each(processes: int) -> int:
    """Returns the number of threads for each of several processes."""
    return max(1, len(os.sched_getaffinity(0)) // processes)


def worker_flags(flags: Flags, grpc_port: int, rest_api_port: int | None) -> Flags:
    """Returns the flags of one worker: the shared ports, and its share of the limits."""
    workers = flags.of(ExtraFlags).workers
    memory = flags.request_memory_bytes // workers

    def share(limit: int) -> int:
        return math.ceil(limit / workers)

    return replace(
        flags,
        port=grpc_port,
        rest_api_port=rest_api_port,
        grpc_max_threads=share(flags.request_threads),
        rest_api_num_threads=share(flags.rest_api_num_threads or flags.request_threads),
        max_in_flight=share(flags.max_in_flight),
        max_request_memory_bytes=memory,
        max_request_bytes=min(flags.request_bytes, memory),
        tensorflow_intra_op_parallelism=flags.tensorflow_intra_op_parallelism or threads_each(workers),
        capture_spool_bytes=share(flags.capture_spool_bytes),
        ready_file="",
    )


def main() -> int:
    """Runs a worker until the supervisor closes its standard input, or has ended; returns its exit status."""
    # A service manager signals all processes of the server; a worker drains once the supervisor asks it to.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # if memory runs out, the kernel should kill a worker, which is replaced
        Path("/proc/self/oom_score_adj").write_text("500")
    assignment: WorkerAssignment = pickle.load(sys.stdin.buffer)
    flags = assignment.flags
    log_lines.configure(flags.log_file)
    with without_keras():
        import airflow_hops.serving.models.saved_model  # noqa: F401  # import early, so the first load is fast

    from airflow_hops.extensions.server_extras.serving.reports import WorkerPeers
    from airflow_hops.serving.server import BundledServer

    set_imports_apart()
    peers = WorkerPeers(assignment.folder, flags.of(ExtraFlags).workers, assignment.slot, assignment.started_at)
    try:
        server = BundledServer(flags, peers)

        def wait_for_end() -> None:
            sys.stdin.buffer.read()
            server.stop()

        threading.Thread(target=wait_for_end, name="supervisor", daemon=True).start()
        server.run()
    except StartError as error:
        print(f"airflow_hops.serving: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # Import the module by its full name, since pickles of the supervisor refer to it.
    from airflow_hops.extensions.server_extras.serving.worker import main as run

    status = run()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)
