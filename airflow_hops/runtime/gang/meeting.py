"""Where the ranks of an elastic gang meet, at first and anew: a Horovod rendezvous, and the places that they get.

The watching side holds a :class:`MeetingPoint`, each rank a :class:`Membership`. A rank that lost a peer leaves
Horovod, says so, and waits for its new place; ranks that wait in reserve do nothing else. Who has a place says that it
is ready, and initializes Horovod once all are: one that is missing then would take the others with it, for a failure of
that initialization ends the process.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow_hops.runtime.gang.leases import take_slot
from airflow_hops.runtime.gang.placement import Placement
from airflow_hops.runtime.gang.rank import Channel
from airflow_hops.runtime.gang.rendezvous import horovod_environment

PORT_VARIABLE = "AIRFLOW_HOPS_MEETING_PORT"
_ADDRESS_VARIABLE = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
_SCOPE = "meeting"
_LOOK_S = 0.05
_RESERVE_LOOK_S = 0.5
_REQUEST_S = 30.0


class MeetingPoint:
    """The watching side: an HTTP server that is Horovod's rendezvous for every meeting.

    Args:
        address: The address of this machine on which it listens; empty for all.
    """

    def __init__(self, address: str) -> None:
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

        self._server = RendezvousHTTPServer((address, 0), RendezvousHandler, 0)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": _LOOK_S}, daemon=True
        )
        self.port = int(self._server.server_address[1])

    def open(self) -> None:
        """Starts to answer: not before the ranks are forked, for a fork must not find threads."""
        self._thread.start()

    def close(self) -> None:
        """Ends the server."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()

    def wish(self, number: int) -> None:
        """Has the members meet for the ``number``-th time, as soon as they have committed their state."""
        self._put({"wanted": str(number).encode()})

    def call(self, number: int, places: Mapping[int, tuple[Placement, int]]) -> None:
        """Gives members their places, before :meth:`go`; a call with a higher number takes the place of this one.

        Args:
            number: Of the meeting.
            places: Place, and number of the slot on its host, by the number that a member was started with.
        """
        from horovod.runner.common.util.hosts import SlotInfo

        slots = [
            SlotInfo(p.host, p.rank, p.local_rank, p.cross_rank, p.size, p.local_size, p.cross_size)
            for p, _ in places.values()
        ]
        # Addresses of an earlier meeting would lead ranks to sockets that are gone.
        self._server.init(slots)
        with self._server.cache_lock:
            self._server.cache["rank_and_size"] = {
                f"{slot.hostname}:{slot.local_rank}": slot.to_response_string().encode() for slot in slots
            }
        self._put(
            {
                f"member-{member}": json.dumps({"number": number, "placement": asdict(place), "slot": slot}).encode()
                for member, (place, slot) in places.items()
            }
        )

    def go(self, number: int) -> None:
        """Has the members of a meeting initialize Horovod: all are ready."""
        self._put({"go": str(number).encode()})

    def _put(self, values: Mapping[str, bytes]) -> None:
        with self._server.cache_lock:
            self._server.cache.setdefault(_SCOPE, {}).update(values)


class Membership:
    """A rank's part in an elastic gang.

    Args:
        placement: With which the rank was started; one in reserve has a rank of ``size`` or more.
        channel: To the process that watches.

    Attributes:
        member: The number that it was started with, which stays.
        placement: Where it stands since the last meeting.
        slot: Which of its host's slots it holds, for as long as it lives; what devices go by.
        meetings: How many there have been.
    """

    def __init__(self, placement: Placement, channel: Channel) -> None:
        self.member = placement.rank
        self.placement = placement
        self.slot = placement.local_rank
        self.meetings = 0
        self._channel = channel
        self._sockets: dict[int, int] = {}

    @classmethod
    def of_rank(cls, placement: Placement, channel: Channel) -> Membership | None:
        """The membership of a rank of an elastic gang, or None in another."""
        return cls(placement, channel) if PORT_VARIABLE in os.environ else None

    @property
    def in_reserve(self) -> bool:
        """Whether it has no place yet."""
        return self.placement.rank >= self.placement.size

    def begin(self) -> None:
        """Initializes Horovod, with the others that begin; a rank in reserve waits until it is wanted."""
        self._await_place(_RESERVE_LOOK_S if self.in_reserve else _LOOK_S)
        self._enter()

    def is_wanted(self) -> bool:
        """Whether the members are to meet anew, as there are ranks to join; every member must call it."""
        import horovod.tensorflow as hvd
        import tensorflow as tf

        wanted = int(self._get("wanted") or 0) if self.placement.rank == 0 else 0
        everywhere = hvd.allreduce(tf.constant(wanted), op=hvd.Max, name="hops_wanted")
        return bool(everywhere.numpy() > self.meetings)

    def meet(self, why: str, *, closed: bool = False) -> None:
        """Leaves Horovod, waits for a new place among those that are left or join, and initializes it there.

        Args:
            why: What made it leave; empty where it was asked to.
            closed: Whether it is too late for ranks to join.
        """
        self._leave(cut=bool(why))
        self._channel.send("meet", why=why, closed=closed, where="the loss of a rank" if why else "a pause")
        self._await_place(_LOOK_S)
        self._enter()

    def _enter(self) -> None:
        import horovod.tensorflow as hvd

        before = set(_sockets())
        hvd.init()
        self._sockets = {inode: descriptor for inode, descriptor in _sockets().items() if inode not in before}

    def _leave(self, *, cut: bool) -> None:
        """Leaves Horovod, after a loss by cutting its connections.

        Horovod closes them only when it is initialized again: peers that wait for this rank's part would wait until
        Gloo's time-out, and so would this rank for theirs.
        """
        import horovod.tensorflow as hvd

        for inode, descriptor in _sockets().items() if cut else ():
            if self._sockets.get(inode) == descriptor:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                    connection.shutdown(socket.SHUT_RDWR)
        hvd.shutdown()

    def _await_place(self, look_s: float) -> None:
        """Waits for a place, says that it is ready, and waits for the others; until then the place may change."""
        met = self.meetings
        while self.meetings == met or int(self._get("go") or 0) < self.meetings:
            found = json.loads(self._get(f"member-{self.member}") or "{}")
            if found.get("number", 0) > self.meetings:
                self._take_place(found)
                look_s = _LOOK_S
            time.sleep(look_s)

    def _take_place(self, found: Mapping[str, Any]) -> None:
        self.meetings, self.slot = found["number"], found["slot"]
        take_slot(self.slot)
        self.placement = Placement(**found["placement"])
        address, interface = os.environ[_ADDRESS_VARIABLE], os.environ["HOROVOD_GLOO_IFACE"]
        os.environ.update(horovod_environment(self.placement, address, int(os.environ[PORT_VARIABLE]), interface))
        self._channel.send("ready", number=self.meetings)

    def _get(self, key: str) -> str | None:
        connection = http.client.HTTPConnection(
            os.environ[_ADDRESS_VARIABLE], int(os.environ[PORT_VARIABLE]), timeout=_REQUEST_S
        )
        try:
            connection.request("GET", f"/{_SCOPE}/{key}")
            answer = connection.getresponse()
            return answer.read().decode() if answer.status == http.client.OK else None
        finally:
            connection.close()


def _sockets() -> dict[int, int]:
    """This process's sockets: their descriptors by inode."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            status = path.stat()
            if stat.S_ISSOCK(status.st_mode):
                found[status.st_ino] = int(path.name)
    return found
