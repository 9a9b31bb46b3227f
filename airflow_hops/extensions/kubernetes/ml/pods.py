"""Ranks in pods beside the step's own: each pod connects to the step by name, and becomes the agent of one rank."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.processes.ending import kill_descendants
from airflow_hops.extensions.kubernetes.core.pods import GANG_VARIABLE
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.training.gang.agent import serve_agent
from airflow_hops.ml.training.gang.crew import Crew, Host, Placement, RankJob, RankLauncher, Work, place
from airflow_hops.ml.training.gang.frames import Frames
from airflow_hops.ml.training.gang.handshake import answer_task, call_driver
from airflow_hops.ml.training.gang.remote import AgentLine, RemoteCrew

# Who starts first does not matter: a pod tries to connect every 0.5 s until the step listens, and the step waits up to
# ten minutes for all pods. Each proves by the gang's secret that it belongs to the step. A container that was restarted
# connects again, and replaces its earlier connection. After a gang, the step closes the connections; agents clean up,
# and the pods connect to the next gang of the step, or end after ten minutes without one.

_START_S = 600.0
_RETRY_S = 0.5
_POLL_S = 1.0


class PodRanks(RankLauncher):
    """Ranks in pods that were created with the step's pod.

    Args:
        slots: Number of the pods.

    Raises:
        BadInput: this step is not a pod.
    """

    def __init__(self, slots: int) -> None:
        if GANG_VARIABLE not in os.environ:
            raise BadInput(
                "ranks_conn_id is a connection of type 'kubernetes', but the step is not a pod; leave launcher_name "
                "out, or set it to 'kubernetes'"
            )
        gang = json.loads(os.environ[GANG_VARIABLE])
        self._slots, self._port, self._secret = slots, gang["port"], bytes.fromhex(gang["secret"])

    def place(self, np: int) -> list[Placement]:
        """Assigns a pod to each rank; see :meth:`airflow_hops.ml.training.gang.crew.RankLauncher.place`."""
        return place([Host(f"rank-{number}", 1) for number in range(self._slots)], np)

    def start(self, placements: Sequence[Placement], work: Work, env: Mapping[str, str]) -> Crew:
        """Waits until all pods have connected, and starts the ranks.

        Raises:
            HopsError: not all pods have connected in time.
        """
        assert isinstance(work, RankJob), "ranks on other hosts take a RankJob"
        connections: dict[str, socket.socket] = {}
        try:
            self._await_pods(placements, connections)
        except BaseException:
            for connection in connections.values():
                connection.close()
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

        def close() -> None:
            for connection in connections.values():
                connection.close()

        return RemoteCrew(placements, work, env, lines, on_end=close)

    def _await_pods(self, placements: Sequence[Placement], connections: dict[str, socket.socket]) -> None:
        deadline, hosts = time.monotonic() + _START_S, {placement.host for placement in placements}
        with socket.create_server(("", self._port), backlog=self._slots) as listener:
            listener.settimeout(_POLL_S)
            while missing := hosts - connections.keys():
                if time.monotonic() > deadline:
                    raise HopsError(
                        f"the pods of {', '.join(sorted(missing))} have not connected to port {self._port} of the "
                        f"step's pod within {_START_S:g} s; check that they run, and the namespace's network policies"
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


def pod_ranks(context: StepContext, *, cpu_ranks: int, slots: int) -> PodRanks:
    """Returns the ranks of the place ``kubernetes``."""
    return PodRanks(slots)


def main(here: Path) -> int:
    """Connects a rank's pod to the step, and serves it until the step ends; returns the exit code.

    ``here`` is the folder of the pod's Secret. After a gang, the pod waits for the next one of the same step.
    """
    signal.signal(signal.SIGTERM, _end)  # without a handler, the first process of a container ignores it
    order: dict[str, Any] = json.loads((here / "pod.json").read_text())
    gang, host = order["gang"], os.environ["HOPS_POD_ROLE"]
    os.environ["TMPDIR"] = order["folder"]
    waits_since = time.monotonic()
    while time.monotonic() - waits_since < _START_S:
        try:
            connection = call_driver((gang["host"], gang["port"]), bytes.fromhex(gang["secret"]), {"host": host})
        except (OSError, HopsError):  # the step does not listen yet, or its name is not known yet
            time.sleep(_RETRY_S)
            continue
        with connection:
            serve_agent(connection.fileno())
        waits_since = time.monotonic()
    sys.stderr.write(f"the step {gang['host']} has not been reached for {_START_S:g} s: this pod ends\n")
    return 1


def _end(*_: Any) -> None:
    kill_descendants()
    os._exit(128 + signal.SIGTERM)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
