"""How the ranks of one machine find each other: Horovod's Gloo rendezvous on the loopback interface."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from airflow_hops.runtime.rank import Placement


def horovod_environment(placement: Placement, port: int, stall_timeout_s: float) -> dict[str, str]:
    """The variables by which Horovod's Gloo controller finds its place, on the loopback interface.

    Args:
        placement: The rank's.
        port: Of the rendezvous server on 127.0.0.1.
        stall_timeout_s: Horovod says in the log which ranks it waits for after a few sixths of it.
    """
    return {
        "HOROVOD_HOSTNAME": placement.host,
        "HOROVOD_RANK": str(placement.rank),
        "HOROVOD_SIZE": str(placement.size),
        "HOROVOD_LOCAL_RANK": str(placement.local_rank),
        "HOROVOD_LOCAL_SIZE": str(placement.local_size),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(max(1, int(stall_timeout_s / 6))),
    }


@contextlib.contextmanager
def rendezvous(size: int) -> Iterator[tuple[int, Callable[[], None]]]:
    """Horovod's rendezvous server on the loopback interface: its port, and what starts it once ranks are forked."""
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, 0)
    server.daemon_threads = True
    host = socket.gethostname()
    server.init([SlotInfo(host, rank, rank, 0, size, size, 1) for rank in range(size)])
    # Connections wait in the socket's backlog until the thread starts: a fork must not find threads.
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    try:
        yield server.server_address[1], thread.start
    finally:
        if thread.is_alive():
            server.shutdown()
        server.server_close()
