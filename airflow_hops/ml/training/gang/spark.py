"""Ranks on Spark's executors.

They run in the tasks of one barrier job (:mod:`airflow_hops.ml.training.gang.barrier`). Horovod's own
``horovod.spark.run`` uses no barrier, so that it waits 600 s for slots that are not there, and reports neither exit
codes nor logs.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.ml.training.gang.barrier import AgentTask, BarrierJob
from airflow_hops.ml.training.gang.crew import Crew, Event, RankJob, Work
from airflow_hops.ml.training.gang.executors import executor_hosts, most_slots, register_seconds
from airflow_hops.ml.training.gang.frames import Frames
from airflow_hops.ml.training.gang.placement import Host, Placement, place
from airflow_hops.ml.training.gang.remote import AgentLine, RemoteCrew

_SETTLE_S = 10.0
_POLL_S = 0.1


class SparkRanks:
    """Ranks on the executors of a Spark application, as many as it can run tasks at once.

    Args:
        context: Its ``SparkContext``.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    def place(self, np: int) -> list[Placement]:
        """Counts the executors' slots; those of a cluster are given some seconds to register.

        Which of them the ranks get, Spark decides when they start: see the crew's placements.

        Raises:
            BadInput: the application does not ask for so many slots.
            HopsError: it does, but the cluster does not give them.
        """
        most = most_slots(self._context)
        if most is not None and (not isinstance(np, int) or np > most):
            return place([Host(self._context.master, most)], np)
        hosts = self._await_slots(np, settles=most is None)
        try:
            return place(hosts, np)
        except BadInput as error:
            if np > sum(host.slots for host in hosts):
                raise HopsError(f"{error}; or wait until the cluster has more for this application") from None
            raise

    def start(self, placements: Sequence[Placement], work: Work, environment: Mapping[str, str]) -> Crew:
        """Starts the barrier job; arguments as :meth:`airflow_hops.ml.training.gang.crew.RankLauncher.start`.

        Raises:
            HopsError: a task did not start, or could not reach the driver.
        """
        assert isinstance(work, RankJob), "ranks on other hosts take a RankJob"
        job = BarrierJob(self._context, len(placements))
        try:
            return SparkCrew(job, job.await_tasks(), work, environment)
        except BaseException:
            job.end()
            raise

    def _await_slots(self, wanted: int, *, settles: bool) -> list[Host]:
        """Returns the hosts once they have enough slots, or no more executors come."""
        began = changed = time.monotonic()
        patience_s = register_seconds(self._context)
        before: list[Host] = []
        while True:
            hosts, now = executor_hosts(self._context), time.monotonic()
            if hosts != before:
                before, changed = hosts, now
            enough = sum(host.slots for host in hosts) >= wanted
            settled = settles and hosts and now - changed > _SETTLE_S
            if enough or settled or now - began > patience_s:
                return hosts
            time.sleep(_POLL_S)


class SparkCrew(Crew):
    """Ranks in the tasks of a barrier job, one in each.

    Args:
        job: The job.
        tasks: Those that have called back, those of one host side by side.
        work: What the ranks do.
        environment: Variables for all of them.
    """

    def __init__(
        self, job: BarrierJob, tasks: Sequence[AgentTask], work: RankJob, environment: Mapping[str, str]
    ) -> None:
        super().__init__(place(_hosts_of(tasks), len(tasks)))
        self._job, self._tasks = job, tasks
        lines = [
            AgentLine(
                placement.host,
                Frames(os.dup(task.connection.fileno())),
                task.connection.getsockname()[0],
                last_words=job.last_words,
                is_final=lambda: False,
                close=task.close,
                ranks=(placement.rank,),
            )
            for placement, task in zip(self.placements, tasks, strict=True)
        ]
        self._crew = RemoteCrew(self.placements, work, environment, lines)

    def events(self, timeout_s: float) -> list[Event]:
        """Returns the new events."""
        return self._crew.events(timeout_s)

    def signal(self, rank: int, number: int) -> None:
        """Signals a rank's process, if it still runs."""
        self._crew.signal(rank, number)

    def end(self) -> None:
        """Ends the ranks, and then the job."""
        self._crew.end()
        self._job.end()
        for task in self._tasks:
            task.connection.close()


def _hosts_of(tasks: Sequence[AgentTask]) -> list[Host]:
    counts = Counter(task.host_hash for task in tasks)
    names = {task.host_hash: task.host for task in tasks}
    twice = {name for name, hosts in Counter(names.values()).items() if hosts > 1}
    return [Host(hash_ if names[hash_] in twice else names[hash_], count) for hash_, count in counts.items()]
