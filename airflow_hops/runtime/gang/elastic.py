"""A gang that goes on with its survivors, and takes in others for those that it lost."""

from __future__ import annotations

import logging
import socket
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_hops.artifacts import BadInput, HopsError
from airflow_hops.protocol import format_record
from airflow_hops.runtime.gang.crew import Crew, RankLauncher, Work
from airflow_hops.runtime.gang.failures import count_oom_kills, describe_exit
from airflow_hops.runtime.gang.local import LocalRanks
from airflow_hops.runtime.gang.meeting import PORT_VARIABLE, MeetingPoint
from airflow_hops.runtime.gang.placement import Host, Placement, place
from airflow_hops.runtime.gang.rendezvous import stall_environment
from airflow_hops.runtime.gang.supervisor import POLL_S, OnMessage, Supervisor, WatchedRank

_CAUSE_S = 5.0


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
            Placement(np, np, began[host] + number, began[host], host)
            for host, slots in Counter(placement.host for placement in grown).items()
            for number in range(slots - began[host] + self.rejoins)
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
    logs.mkdir(parents=True, exist_ok=True)
    oom_kills = count_oom_kills()
    is_here = {placement.host for placement in placements} == {socket.gethostname()}
    meeting = MeetingPoint("127.0.0.1" if is_here else "")
    try:
        crew = launcher.start(
            placements,
            work,
            {
                **stall_environment(stall_timeout_s),
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


class ElasticSupervisor(Supervisor):
    """The watching side of a gang that may shrink and grow.

    Ranks are known by the number that they were started with; ``placement`` says which rank they are at present, and
    ``watched`` which of them are in the gang.

    Args:
        crew: The ranks, those in reserve behind the others.
        logs: Folder of the log files.
        stall_timeout_s: Seconds without a sign of life from a rank after which it is ended.
        on_message: Called with the rank and each message that it sends, and with each resize.
        oom_kills: :func:`airflow_hops.runtime.gang.failures.count_oom_kills` before the ranks began.
        elastic: How far the gang may shrink and grow.
        meeting: Where its ranks meet anew.
    """

    def __init__(
        self,
        crew: Crew,
        logs: Path,
        stall_timeout_s: float,
        on_message: OnMessage,
        oom_kills: int | None,
        *,
        elastic: Elastic,
        meeting: MeetingPoint,
    ) -> None:
        super().__init__(crew, logs, stall_timeout_s, self._hear, oom_kills)
        self._elastic, self._meeting, self._tell = elastic, meeting, on_message
        self._reserve = [rank for rank in self.ranks if rank.placement.rank >= rank.placement.size]
        self.watched = [rank for rank in self.ranks if rank not in self._reserve]
        self._max_np = elastic.max_np or len(self.watched)
        self._hosts = list(dict.fromkeys(placement.host for placement in crew.placements))
        self._free = [Slot(0.0, host, number) for host in self._hosts for number in self._never_taken(host)]
        self._slots = {rank.number: rank.placement.local_rank for rank in self.watched}
        self._invited: list[WatchedRank] = []
        self._waiting: dict[int, Mapping[str, Any]] = {}
        self._meetings = 0
        self._losses: list[tuple[WatchedRank, str]] = []
        self._told = 0
        self._unmet_since: float | None = None

    def watch(self) -> list[Any]:
        """Waits for all ranks that are left to finish, or raises for the one without which it cannot go on.

        Returns:
            What the ranks returned.
        """
        while not all(rank.ended for rank in self.watched):
            self._take_in(POLL_S)
            if any(rank.failed for rank in self.watched):
                culprit = self._find_culprit()
                self._lose(culprit, self._failure(culprit), self._describe_loss(culprit))
            stalled = [rank for rank in self._find_stalled() if rank.number not in self._waiting]
            if stalled:
                culprit, error = self._stall(stalled)
                self._lose(culprit, error, f"no progress for {self._stall_timeout_s:g} s (stall_timeout_s)")
            self._invite()
            self._gather()
        return [rank.result for rank in sorted(self.watched, key=lambda rank: rank.placement.rank)]

    def end(self) -> None:
        """Kills what still runs, and closes the logs; ranks that never left the reserve leave none."""
        super().end()
        for rank in self._reserve:
            Path(rank.log.name).unlink(missing_ok=True)

    def _hear(self, number: int, message: Mapping[str, Any]) -> None:
        if message["type"] == "meet":
            self._waiting[number] = message
        else:
            self._tell(self.ranks[number].placement.rank, message)

    def _lose(self, rank: WatchedRank, error: HopsError, how: str) -> None:
        """Takes a rank out of the gang; raises its error where the others cannot go on."""
        self._crew.kill(rank.number)
        before = len(self.watched)
        self.watched.remove(rank)
        self._losses.append((rank, how))
        self._waiting.pop(rank.number, None)
        left = len(self.watched)
        exported_by = rank.placement.rank == 0 and any(other.finished for other in self.watched)
        if not error.retryable or left < self._elastic.min_np or exported_by:
            self.end()
            raise type(error)(f"{error}{self._tell_losses()}" if error.retryable else str(error))
        now = time.monotonic()
        self._free.append(Slot(now + self._elastic.cooldown_s, rank.placement.host, self._slots[rank.number]))
        for other in self.watched:
            other.last_alive = now
        _log(f"{rank.placement}: {how}, after {rank.where}; ranks left: {left} of {before}", logging.WARNING)

    def _tell_losses(self) -> str:
        told = f"\nRanks left: {len(self.watched)}; min_np is {self._elastic.min_np}."
        if len(self._losses) > 1:
            told += " Lost before: " + "; ".join(f"rank-{rank.number}.log: {how}" for rank, how in self._losses[:-1])
        return told

    def _describe_loss(self, rank: WatchedRank) -> str:
        return str(rank.error["message"]) if rank.error else describe_exit(rank.exit_code, self._oom_kills)

    def _never_taken(self, host: str) -> range:
        """Numbers of the slots of a host that the gang may grow into."""
        began = sum(rank.placement.host == host for rank in self.watched)
        kept = sum(rank.placement.host == host for rank in self._reserve)
        return range(began, began + kept - self._elastic.rejoins)

    def _invite(self) -> None:
        """Wakes ranks in reserve for slots that are free."""
        if any(rank.finished for rank in self.watched):
            return
        for slot in list(self._free):
            if len(self.watched) + len(self._invited) >= self._max_np:
                return
            able = [rank for rank in self._reserve if not rank.ended and rank.placement.host == slot.host]
            if able and time.monotonic() >= slot.free_at:
                self._free.remove(slot)
                self._reserve.remove(able[0])
                self._invited.append(able[0])
                self._slots[able[0].number] = slot.number
                self._meeting.wish(self._meetings + 1)

    def _gather(self) -> None:
        """Gives new places once all that are left have come."""
        members = [rank for rank in self.watched if not rank.ended]
        if not members or not all(rank.number in self._waiting for rank in members):
            self._unmet_since = None
            return
        closed = any(message["closed"] for message in self._waiting.values())
        joining = [rank for rank in self._invited if not rank.ended and not closed]
        lost = self._losses[self._told :]
        if not lost and not joining:
            self._give_up_without_cause()
            return
        before = members[0].placement.size
        gang, places = self._number(members, joining)
        gone = [{"rank": rank.placement.rank, "host": rank.placement.host, "how": how} for rank, how in lost]
        for rank, placement in zip(gang, places, strict=True):
            rank.placement, rank.last_alive = placement, time.monotonic()
        self.watched, self._invited, self._told, self._unmet_since = gang, [], len(self._losses), None
        self._waiting.clear()
        self._meetings += 1
        self._meeting.call(self._meetings, {rank.number: (rank.placement, self._slots[rank.number]) for rank in gang})
        _log(f"ranks from here on: {len(gang)}" + (f", {len(joining)} of them new" if joining else ""), logging.INFO)
        self._tell(
            0,
            {
                "type": "resized",
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "lost": gone,
                "joined": [{"rank": rank.placement.rank, "host": rank.placement.host} for rank in joining],
                "ranks_before": before,
                "ranks_after": len(gang),
                "logs": [Path(rank.log.name).name for rank in gang],
            },
        )

    def _number(
        self, members: list[WatchedRank], joining: list[WatchedRank]
    ) -> tuple[list[WatchedRank], list[Placement]]:
        """Places for ranks, those first that know the training: rank 0 tells of it."""
        known = {rank.placement.host for rank in members}
        hosts = sorted(self._hosts, key=lambda host: host not in known)
        gang = [rank for host in hosts for rank in (*members, *joining) if rank.placement.host == host]
        counts = Counter(rank.placement.host for rank in gang)
        return gang, place([Host(host, counts[host]) for host in hosts], len(gang))

    def _give_up_without_cause(self) -> None:
        """All ranks have lost one another, but none has ended: what they say is all that is known."""
        now = time.monotonic()
        self._unmet_since = self._unmet_since or now
        if now - self._unmet_since > _CAUSE_S:
            why = next((message["why"] for message in self._waiting.values() if message["why"]), "")
            self.end()
            raise HopsError(f"the ranks lost their connections, though none of them has ended: {why}")


@dataclass(frozen=True)
class Slot:
    """Room for a rank.

    Attributes:
        free_at: From when on it may be taken; seconds of ``time.monotonic``.
        host: Its host.
        number: Which of the host's slots.
    """

    free_at: float
    host: str
    number: int


def _log(text: str, level: int) -> None:
    print(format_record(text, level=level), flush=True)
