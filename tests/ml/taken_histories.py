"""Histories of runs that take what others fill: each is killed, cleared, late, or at the same time as another one."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.core.errors import HopsError


@dataclass
class Runs(ABC):
    """Runs of the windows of a source, and what is in their snapshots, by the window's hour.

    Attributes:
        options: Options of the source that change which things are taken.
    """

    options: Any = field(default=None, kw_only=True)
    snapshots: dict[int, list[str]] = field(default_factory=dict, kw_only=True)
    taken_by: dict[int, Any] = field(default_factory=dict, kw_only=True)

    @abstractmethod
    def plan(self, hour: int) -> Any:
        """Plans a window by a new run."""

    @abstractmethod
    def read(self, hour: int, plan: Any) -> list[str]:
        """Returns the names of the things in a window's snapshot, sorted."""

    @abstractmethod
    def commit(self, plan: Any) -> None:
        """Records that a plan's step has succeeded."""

    def run(self, hour: int, ends_before: str = "") -> None:
        """Runs a window to its end, or until it is killed."""
        plan = self.plan(hour)
        if ends_before == "read":
            return
        names = self.read(hour, plan)
        if ends_before == "commit":
            return
        self.commit(plan)
        self.keep(hour, names)

    def keep(self, hour: int, names: list[str]) -> None:
        """Keeps a snapshot; a window that was taken has the same again, and may have more by other options."""
        former, options = self.snapshots.get(hour, names), self.taken_by.get(hour, self.options)
        assert former == names or (options != self.options and set(former) < set(names)), f"hour {hour}"
        self.snapshots[hour], self.taken_by[hour] = names, self.options

    def plan_both(self, first: int, second: int) -> list[tuple[int, Any]]:
        """Plans two windows, or one twice, at the same time."""
        return [(hour, self.plan(hour)) for hour in (first, second)]

    def run_both(self, first: int, second: int, rng: random.Random) -> None:
        """Runs two windows, or one twice, at the same time; a run that is refused is tried again."""
        reads = [(hour, plan, self.read(hour, plan)) for hour, plan in self.plan_both(first, second)]
        for hour, plan, names in rng.sample(reads, 2):
            try:
                self.commit(plan)
            except HopsError:
                self.run(hour)
            else:
                self.keep(hour, names)

    def history(self, rng: random.Random, hours: int, surely_from: int, events: Counter[str]) -> Iterator[int]:
        """Runs the windows of a number of hours, and yields each hour before, at first -1; at last none fails.

        Args:
            rng: Chooses what happens.
            hours: Number of windows.
            surely_from: First hour whose run ends.
            events: Counts what happens.
        """
        missed = set[int]()
        yield -1
        for hour in range(hours):
            yield hour
            fate = rng.choice(["ends", "ends", "read", "commit", "both", "twice", *(["never"] if hour else [])])
            events[fate] += 1
            if hour >= surely_from or fate == "ends":
                self.run(hour)
            elif fate in ("read", "commit"):
                self.run(hour, fate)
                missed.add(hour)
            elif fate == "never":
                missed.add(hour)
            else:
                self.run_both(hour, hour if fate == "twice" or not hour else hour - 1, rng)
            if rng.random() < 0.3 and hour:  # a former one is cleared, or begins late
                again = rng.randrange(hour)
                events["late" if again in missed else "cleared"] += 1
                self.run(again, rng.choice(["", "", "read", "commit"]))
        for hour in rng.sample([*self.snapshots], min(3, len(self.snapshots))):
            self.run(hour)

    def counts(self) -> Counter[str]:
        """Returns in how many snapshots each thing is."""
        return Counter(name for names in self.snapshots.values() for name in names)
