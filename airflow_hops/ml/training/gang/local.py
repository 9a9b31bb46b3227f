"""Ranks on this machine, forked from the step's process.

Start-up is what training of minutes costs, so ranks are not started but forked, after TensorFlow and Horovod have been
imported and before any of their threads run.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence

from airflow_hops.ml.training.devices import get_num_gpus
from airflow_hops.ml.training.gang.crew import Crew, Work
from airflow_hops.ml.training.gang.forked import ForkedCrew, check_forkable
from airflow_hops.ml.training.gang.placement import Host, Placement, place
from airflow_hops.ml.training.gang.rendezvous import LOOPBACK, horovod_environment, rendezvous


class LocalRanks:
    """Ranks of this machine.

    Args:
        slots: How many there is room for; by default as many as GPUs or, without any, cores.
        cpu_ranks: How many of the ranks need no GPU: by default there is room for them beside the GPUs.
    """

    def __init__(self, slots: int | None = None, cpu_ranks: int = 0) -> None:
        gpus = get_num_gpus()
        self.slots = slots or (gpus + cpu_ranks if gpus else len(os.sched_getaffinity(0)))

    def place(self, np: int) -> list[Placement]:
        """Finds a slot for each rank; see :meth:`airflow_hops.ml.training.gang.crew.RankLauncher.place`."""
        return place([Host(socket.gethostname(), self.slots)], np)

    def start(self, placements: Sequence[Placement], work: Work, environment: Mapping[str, str]) -> Crew:
        """Forks the ranks.

        Raises:
            HopsError: TensorFlow runs already in this process.
        """
        return LocalCrew(placements, work, environment)


class LocalCrew(ForkedCrew):
    """Forked ranks, with Horovod's rendezvous server between them.

    Args:
        placements: Of the ranks, all on this machine.
        work: What they do.
        environment: Variables for all of them.
    """

    def __init__(self, placements: Sequence[Placement], work: Work, environment: Mapping[str, str]) -> None:
        check_forkable()
        self._closing = contextlib.ExitStack()
        port, serve = self._closing.enter_context(rendezvous(placements))
        environments = {
            placement.rank: {**environment, **horovod_environment(placement, "127.0.0.1", port, LOOPBACK)}
            for placement in placements
        }
        try:
            super().__init__(placements, work, environments)
        except BaseException:
            self._closing.close()
            raise
        serve()

    def end(self) -> None:
        """Kills the ranks and what they have started, and closes the rendezvous."""
        super().end()
        self._closing.close()
