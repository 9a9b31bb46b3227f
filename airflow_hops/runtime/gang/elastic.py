"""A gang that goes on with its survivors, and takes in others for those that it lost."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_hops.artifacts import BadInput
from airflow_hops.runtime.gang.crew import RankLauncher, Work
from airflow_hops.runtime.gang.elastic_supervisor import ElasticSupervisor
from airflow_hops.runtime.gang.failures import count_oom_kills
from airflow_hops.runtime.gang.local import LocalRanks
from airflow_hops.runtime.gang.meeting import PORT_VARIABLE, MeetingPoint
from airflow_hops.runtime.gang.placement import Placement
from airflow_hops.runtime.gang.rendezvous import stall_environment
from airflow_hops.runtime.gang.supervisor import OnMessage


@dataclass(frozen=True)
class Elastic:
    """How far a gang may shrink and grow.

    Attributes:
        min_np: Ranks below which it fails.
        max_np: Ranks up to which others join; None: as many as it began with.
        cooldown_s: Seconds after a rank's end before its slot is taken again.
        rejoins: How often a slot of a lost rank is taken again, on each host.
    """

    min_np: int
    max_np: int | None = None
    cooldown_s: float = 30.0
    rejoins: int = 2

    def place(self, launcher: RankLauncher, np: int) -> list[Placement]:
        """Finds slots for the ranks, and places in reserve behind them: their rank is ``np`` or more.

        A local rank is a slot of the host: those in reserve have first the slots into which the gang may grow, and
        then such as others hold, for they take whichever of these is lost.

        Ranks in reserve are started with the others, and wait: a process can be forked only before it trains.

        Args:
            launcher: Where the ranks run.
            np: With how many the gang begins.

        Raises:
            BadInput: the launcher knows no such ranks; the numbers contradict one another; there are too few slots.
        """
        if not getattr(launcher, "elastic", False):
            raise BadInput(
                "min_np, max_np: ranks that are started like these cannot go on without one another; leave both out, "
                "or run the ranks on this machine"
            )
        placements = launcher.place(np)
        check_bounds(np, self.min_np, self.max_np)
        try:
            grown = launcher.place(max(np, self.max_np or np))
        except BadInput as error:
            raise BadInput(f"max_np: {error}") from None
        began = Counter(placement.host for placement in placements)
        reserve = [
            Placement(np, np, number % slots, began[host], host)
            for host, slots in Counter(placement.host for placement in grown).items()
            for number in range(began[host], slots + self.rejoins)
        ]
        return [*placements, *(replace(place, rank=np + number) for number, place in enumerate(reserve))]


def check_bounds(np: int, min_np: int | None, max_np: int | None) -> None:
    """Checks how far a gang may shrink and grow.

    Raises:
        BadInput: a bound is no number of ranks, or on the wrong side of ``np``.
    """
    for name, bound in (("min_np", min_np), ("max_np", max_np)):
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int) or bound < 1):
            raise BadInput(f"{name} is {bound!r}, expected a number of ranks, 1 or more")
    if min_np is not None and min_np > np:
        raise BadInput(f"min_np is {min_np}, more than the {np} ranks that the gang begins with (np)")
    if max_np is not None and max_np < np:
        raise BadInput(f"max_np is {max_np}, fewer than the {np} ranks that the gang begins with (np)")


def run_elastic_gang(
    work: Work,
    size: int,
    *,
    elastic: Elastic,
    logs: Path,
    launcher: RankLauncher | None = None,
    environment: Mapping[str, str] | None = None,
    stall_timeout_s: float = 300.0,
    on_message: OnMessage | None = None,
) -> list[Any]:
    """Runs ``work`` on ranks that go on when some of them are lost; otherwise as :func:`run_gang`.

    The work takes part by a :class:`airflow_hops.runtime.gang.meeting.Membership`. A rank keeps the log file
    ``rank-<n>.log`` of the number that it was started with.

    Args:
        work: Called in each rank's process with its placement and its channel.
        size: With how many ranks the gang begins.
        elastic: How far it may shrink and grow.
        logs: Folder of the log files; it is made.
        launcher: Where the ranks run; this machine by default.
        environment: Variables for all ranks.
        stall_timeout_s: Seconds without a sign of life from a rank after which it is ended.
        on_message: Called with the rank and each message that it sends, signs of life apart; and, after each resize,
            with ``{"type": "resized", "lost", "joined", "ranks_before", "ranks_after", "logs", "time"}``.

    Returns:
        What ``work`` returned in the ranks that finished, by the rank that they ended as.

    Raises:
        BadInput: a rank failed in a way that a retry would repeat, there are too few slots, or the ranks cannot go on
            without one another.
        HopsError: fewer than ``min_np`` ranks are left.
    """
    launcher = launcher or LocalRanks()
    placements = elastic.place(launcher, size)
    own = stall_environment(stall_timeout_s)
    logs.mkdir(parents=True, exist_ok=True)
    oom_kills = count_oom_kills()
    is_here = {placement.host for placement in placements} == {socket.gethostname()}
    meeting = MeetingPoint("127.0.0.1" if is_here else "")
    try:
        crew = launcher.start(
            placements,
            work,
            {
                **own,
                "HOROVOD_ELASTIC": "1",
                PORT_VARIABLE: str(meeting.port),
                **(environment or {}),
            },
        )
        meeting.open()
        supervisor = ElasticSupervisor(
            crew,
            logs,
            stall_timeout_s,
            on_message or (lambda rank, message: None),
            oom_kills,
            elastic=elastic,
            meeting=meeting,
        )
        try:
            return supervisor.watch()
        finally:
            supervisor.end()
    finally:
        meeting.close()


def note_resize(resizes: list[dict[str, Any]], message: Mapping[str, Any]) -> None:
    """Keeps account of a gang's resizes, from its messages.

    Args:
        resizes: The account: a new entry for each resize, to which is added where training went on.
        message: Of any kind.
    """
    fields = {name: value for name, value in message.items() if name != "type"}
    if message["type"] == "resized":
        resizes.append(fields)
    elif message["type"] == "went_on" and resizes:
        resizes[-1] |= fields
