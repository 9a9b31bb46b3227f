"""Ranks in pods beside the step's own: each pod connects to the step by name, and becomes the agent of one rank."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.ending import kill_descendants
from airflow_hops.core.processes.polling import pauses
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.training.rank_places import GANG_VARIABLE
from airflow_hops.extensions.ranks.ml.agent import serve_agent
from airflow_hops.extensions.ranks.ml.frames import Frames
from airflow_hops.extensions.ranks.ml.handshake import answer_task, call_driver
from airflow_hops.extensions.ranks.ml.remote import AgentLine, RemoteCrew
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.training.gang.crew import Crew, Placement, RankJob, RankLauncher, Work, place

# Who starts first does not matter: a pod tries to connect every 0.5 s until the step listens, and the step waits up to
# ten minutes for all pods. Each proves by the gang's secret that it belongs to the step. A container that was restarted
# connects again, and replaces its earlier connection. After a gang, the step closes the connections; agents clean up,
# and the pods connect to the next gang of the step, or end after ten minutes without one.
# With a range of ranks, the step first waits for the pods of the least number, then for a bounded time for the others,
# and writes down which ones it takes. The worker that follows the step deletes the others, connected or not.

_CALL = b"!"
"""Sent to a pod that gets a rank."""
_START_S = 600.0
_RETRY_S = 0.5
_POLL_S = 1.0


class PodRanks(RankLauncher):
    """Ranks in pods that were created with the step's pod.

    Args:
        slots: Number of the pods.
        store: The artifact store.

    Raises:
        BadInput: this step is not a pod.
    """

    def __init__(self, slots: int, store: ArtifactStore) -> None:
        if GANG_VARIABLE not in os.environ:
            raise BadInput(
                "ranks_conn_id names a connection of type 'kubernetes', but the step is not a pod; leave launcher_name "
                "out, or set it to 'kubernetes'"
            )
        gang = json.loads(os.environ[GANG_VARIABLE])
        self._gang, self._port, self._secret, self._store = gang, gang["port"], bytes.fromhex(gang["secret"]), store
        self._hosts = [f"rank-{number}" for number in range(slots)]

    def await_slots(self, least: int, most: int) -> None:
        """Waits for the pods; see :meth:`airflow_hops.ml.training.gang.crew.RankLauncher.await_slots`."""
        connections: dict[str, socket.socket] = {}
        try:
            self._accept(connections, lambda: len(connections) < least, _START_S)
            with contextlib.suppress(HopsError):  # fewer have come
                self._accept(connections, lambda: len(connections) < most, self._gang["more_timeout_s"])
            self._hosts = [host for host in self._hosts if host in connections]
        finally:
            _close(connections)  # the pods connect again when the ranks start
        self._store.write_text(self._gang["chosen"], json.dumps(self._hosts))

    def place(self, np: int) -> list[Placement]:
        """Assigns a pod to each rank; see :meth:`airflow_hops.ml.training.gang.crew.RankLauncher.place`."""
        return place(dict.fromkeys(self._hosts, 1), np)

    def start(self, placements: Sequence[Placement], work: Work, env: Mapping[str, str]) -> Crew:
        """Waits until all pods have connected, and starts the ranks.

        Raises:
            HopsError: not all pods have connected in time.
        """
        assert isinstance(work, RankJob), "ranks on other hosts take a RankJob"
        connections: dict[str, socket.socket] = {}
        try:
            hosts = {placement.host for placement in placements}
            self._accept(connections, lambda: not hosts <= connections.keys(), _START_S)
            for host in hosts:
                with contextlib.suppress(OSError):  # the crew reports a pod that died
                    connections[host].sendall(_CALL)
        except BaseException:
            _close(connections)
            raise
        lines = []
        for placement in placements:
            connection = connections[placement.host]
            lines.append(
                AgentLine(
                    placement.host,
                    Frames(os.dup(connection.fileno())),
                    connection.getsockname()[0],
                    last_words=lambda: "",
                    is_final=lambda: False,
                    close=partial(_shut, connection),
                    ranks=(placement.rank,),
                )
            )

        return RemoteCrew(placements, work, env, lines, on_end=partial(_close, connections))

    def _accept(self, connections: dict[str, socket.socket], is_waiting: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with socket.create_server(("", self._port), backlog=len(self._hosts)) as listener:
            listener.settimeout(_POLL_S)
            while is_waiting():
                if time.monotonic() > deadline:
                    missing = sorted(set(self._hosts) - connections.keys())
                    raise HopsError(
                        f"the pods of {', '.join(missing)} have not connected to port {self._port} of the step's pod "
                        f"within {timeout_s:g} s; check that they run, and the namespace's network policies"
                    )
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    try:
                        host = answer_task(connection, self._secret)["host"]
                    except (OSError, HopsError):  # a port scanner, or a pod that died
                        connection.close()
                        continue
                    if host in connections:  # of a container that was started again
                        connections.pop(host).close()
                    connections[host] = connection
                closed = select.select(connections.values(), (), (), 0)[0]  # pods are silent until they are called
                for host in [host for host, connection in connections.items() if connection in closed]:
                    connections.pop(host).close()


def pod_ranks(context: StepContext, *, cpu_ranks: int, slots: int) -> PodRanks:
    """Returns the ranks of the place ``kubernetes``."""
    return PodRanks(slots, context.store)


def main(here: Path) -> int:
    """Connects a rank's pod to the step, and serves it until the step ends; returns the exit code.

    ``here`` is the folder of the pod's Secret. After a gang, the pod waits for the next one of the same step.
    """
    signal.signal(signal.SIGTERM, _end)  # without a handler, the first process of a container ignores it
    order: dict[str, Any] = json.loads((here / "pod.json").read_text())
    gang, host = order["gang"], os.environ["HOPS_POD_ROLE"]
    os.environ["TMPDIR"] = order["folder"]
    while (connection := _call(gang, host)) is not None:
        with connection:
            if _is_called(connection):
                serve_agent(connection.fileno())
    sys.stderr.write(f"the step {gang['host']} has not been reached for {_START_S:g} s: this pod ends\n")
    return 1


def _call(gang: Mapping[str, Any], host: str) -> socket.socket | None:
    """Connects to the step; returns None if it cannot be reached for long."""
    for pause_s in pauses(_RETRY_S, _START_S):
        with contextlib.suppress(OSError, HopsError):  # it does not listen yet, or its name is not known yet
            return call_driver((gang["host"], gang["port"]), bytes.fromhex(gang["secret"]), {"host": host})
        time.sleep(pause_s)
    return None


def _end(*_: object) -> None:
    kill_descendants()
    os._exit(128 + signal.SIGTERM)


def _is_called(connection: socket.socket) -> bool:
    """Waits until the step starts a rank over a connection, or closes it."""
    connection.settimeout(_START_S)
    try:
        return connection.recv(1) == _CALL
    except OSError:
        return False
    finally:
        connection.settimeout(None)


def _close(connections: Mapping[str, socket.socket]) -> None:
    for connection in connections.values():
        connection.close()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
