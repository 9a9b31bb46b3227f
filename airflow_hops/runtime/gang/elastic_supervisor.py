"""Watches a gang that may shrink and grow: who is lost, who may join, and when the ranks meet."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_hops.artifacts import HopsError
from airflow_hops.protocol import format_record
from airflow_hops.runtime.gang.crew import Crew
from airflow_hops.runtime.gang.meeting import MeetingPoint
from airflow_hops.runtime.gang.placement import Host, place
from airflow_hops.runtime.gang.supervisor import POLL_S, OnMessage, Supervisor, WatchedRank

if TYPE_CHECKING:
    from airflow_hops.runtime.gang.elastic import Elastic

_CAUSE_S = 5.0
_READY_S = 30.0


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
        self._ready: set[int] = set()
        self._called_at = 0.0
        self._resize: dict[str, Any] | None = None
        self._joining: list[WatchedRank] = []
        self._meetings = 0
        self._losses: list[tuple[WatchedRank, str]] = []
        self._told = 0
        self._unmet_since: float | None = None

    def watch(self) -> list[Any]:
        """Waits for all ranks that are left to finish, or raises for the one without which it cannot go on.

        Returns:
            What the ranks returned.
        """
        self._call(self.watched)
        while not all(rank.ended and not rank.failed for rank in self.watched):
            self._take_in(POLL_S)
            if any(rank.failed for rank in self.watched):
                culprit = self._find_culprit()
                self._lose(culprit, self._failure(culprit), self._describe_loss(culprit))
            self._let_go()
            waiting = self._ready if self._called_at else self._waiting
            at_work = [rank for rank in self.watched if rank.number not in waiting]
            stalled = [rank for rank in self._find_stalled() if rank in at_work]
            if stalled:
                culprit, error = self._stall(stalled, at_work)
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
        elif message["type"] == "ready":
            if message["number"] == self._meetings:
                self._ready.add(number)
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
        if self._called_at:  # the others have not begun to look for it
            self._regroup(self.watched, [])

    def _tell_losses(self) -> str:
        told = f"\nRanks left: {len(self.watched)}; min_np is {self._elastic.min_np}."
        if len(self._losses) > 1:
            told += " Lost before: " + "; ".join(f"rank-{rank.number}.log: {how}" for rank, how in self._losses[:-1])
        return told

    def _describe_loss(self, rank: WatchedRank) -> str:
        return str(rank.error["message"]) if rank.error else self._describe_exit(rank)

    def _never_taken(self, host: str) -> range:
        """Numbers of the slots of a host that the gang may grow into."""
        began = sum(rank.placement.host == host for rank in self.watched)
        kept = sum(rank.placement.host == host for rank in self._reserve)
        return range(began, began + kept - self._elastic.rejoins)

    def _invite(self) -> None:
        """Wakes ranks in reserve for slots that are free."""
        if self._called_at or any(rank.finished for rank in self.watched):
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
        if self._called_at or not members or not all(rank.number in self._waiting for rank in members):
            self._unmet_since = None
            return
        closed = any(message["closed"] for message in self._waiting.values())
        joining = [rank for rank in self._invited if not rank.ended and not closed]
        lost = self._losses[self._told :]
        if not lost and not joining:
            self._give_up_without_cause()
            return
        self._regroup(members, joining)

    def _regroup(self, members: list[WatchedRank], joining: list[WatchedRank]) -> None:
        """Gives places to those that are left and those that join, and notes what changed."""
        resize = self._resize or {"lost": [], "joined": [], "ranks_before": None}
        for rank, how in self._losses[self._told :]:
            log = Path(rank.log.name).name
            resize["lost"].append({"rank": rank.placement.rank, "host": rank.placement.host, "log": log, "how": how})
        self._told = len(self._losses)
        resize["ranks_before"] = resize["ranks_before"] or members[0].placement.size
        self._resize = resize
        self._joining = [*(rank for rank in self._joining if rank in members), *joining]
        self._invited = [rank for rank in self._invited if rank not in joining]
        self._waiting.clear()
        self._call([*members, *joining])

    def _call(self, gang: list[WatchedRank]) -> None:
        """Has ranks come to the next meeting, in new places; those first that know the training."""
        known = {rank.placement.host for rank in gang if rank not in self._joining}
        hosts = sorted(self._hosts, key=lambda host: host not in known)
        self.watched = [rank for host in hosts for rank in gang if rank.placement.host == host]
        counts = Counter(rank.placement.host for rank in gang)
        places = place([Host(host, counts[host]) for host in hosts], len(gang))
        for rank, placement in zip(self.watched, places, strict=True):
            rank.placement = placement
        self._meetings += 1
        self._ready.clear()
        self._called_at, self._unmet_since = time.monotonic(), None
        self._meeting.call(
            self._meetings, {rank.number: (rank.placement, self._slots[rank.number]) for rank in self.watched}
        )

    def _let_go(self) -> None:
        """Has the ranks initialize Horovod once all are ready; who does not come is given up."""
        if not self._called_at:
            return
        now = time.monotonic()
        missing = [rank for rank in self.watched if rank.number not in self._ready]
        if missing and now - self._called_at > _READY_S:
            how = f"it did not come to meet the others within {_READY_S:g} s"
            self._lose(missing[0], HopsError(f"{missing[0].placement}: {how}; all ranks were ended"), how)
        if missing:
            return
        self._meeting.go(self._meetings)
        self._called_at = 0.0
        for rank in self.watched:
            rank.last_alive = now
        if self._resize is not None:
            self._tell_resize(self._resize)
            self._resize, self._joining = None, []

    def _tell_resize(self, resize: dict[str, Any]) -> None:
        joined, size = self._joining, len(self.watched)
        _log(f"ranks from here on: {size}" + (f", {len(joined)} of them new" if joined else ""), logging.INFO)
        self._tell(
            0,
            {
                **resize,
                "type": "resized",
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "joined": [{"rank": rank.placement.rank, "host": rank.placement.host} for rank in joined],
                "ranks_after": size,
                "logs": [Path(rank.log.name).name for rank in self.watched],
            },
        )

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
