"""Ranks on Spark's executors.

They run in the tasks of one barrier job, which start together or not at all; each task becomes an agent for one rank.
Horovod's own ``horovod.spark.run`` does not use a barrier, so that it waits 600 s for missing slots, and reports
neither exit codes nor logs.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.polling import pauses
from airflow_hops.core.store.leases import Watch
from airflow_hops.extensions.ranks.ml.frames import Frames
from airflow_hops.extensions.ranks.ml.handshake import answer_task, call_driver
from airflow_hops.extensions.ranks.ml.remote import AgentLine, RemoteCrew
from airflow_hops.ml.spark.context import as_spark_failure, start_spark_context
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.training.gang.crew import Crew, Placement, RankJob, RankLauncher, Work, place

# Order: the driver listens, a barrier job starts np tasks, each task calls back and proves by the gang's secret that
# it belongs to it (handshake.py). When all have called, the driver stops listening, sorts them by host, and gives out
# ranks; from then on each task is an agent.
# A killed driver closes the connections, and agents kill their ranks. A failed task makes Spark restart the barrier
# stage; its tasks cannot connect any more, so the gang fails as a whole and Airflow's retry starts another.

_SETTLE_S = 10.0
_POLL_S = 0.1
_CALL_BACK_S = 600.0
_END_S = 4.0
_LAST_WORDS_S = 0.5
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,")


class SparkRanks(RankLauncher):
    """Ranks on the executors of a Spark application (a ``SparkContext``), as many as it can run tasks at once."""

    is_forkable = False  # the application belongs to this process

    def __init__(self, context: Any) -> None:
        self._context = context

    def place(self, np: int) -> list[Placement]:
        """Counts the executors' slots, after giving those of a cluster some seconds to register.

        Spark assigns the ranks to them when they start: see the crew's placements.

        Raises:
            BadInput: the application does not request so many slots.
            HopsError: the application requests them, but the cluster does not provide them.
        """
        most = _most_slots(self._context)
        if most is not None and (not isinstance(np, int) or np > most):
            return place({self._context.master: most}, np)
        hosts = self._await_slots(np, settles=most is None)
        try:
            return place(hosts, np)
        except BadInput as error:
            if np > sum(hosts.values()):
                raise HopsError(f"{error}; or wait until the cluster has more for this application") from None
            raise

    def start(self, placements: Sequence[Placement], work: Work, env: Mapping[str, str]) -> Crew:
        """Starts the barrier job; arguments as :meth:`airflow_hops.ml.training.gang.crew.RankLauncher.start`.

        Raises:
            HopsError: a task did not start, or could not reach the driver.
        """
        assert isinstance(work, RankJob), "ranks on other hosts take a RankJob"
        job = BarrierJob(self._context, len(placements))
        try:
            tasks = job.await_tasks()
            placements = place(_hosts_of(tasks), len(tasks))
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
                for placement, task in zip(placements, tasks, strict=True)
            ]
            return RemoteCrew(placements, work, env, lines, on_end=job.end)
        except BaseException:
            job.end()
            raise

    def _await_slots(self, wanted: int, *, settles: bool) -> dict[str, int]:
        """Returns the hosts once they have enough slots, or no more executors register."""
        watch = Watch(_executor_hosts(self._context))
        patience_s = (
            self._context._jsc.sc().conf().getTimeAsSeconds("spark.scheduler.maxRegisteredResourcesWaitingTime", "60s")
        )
        for pause_s in pauses(_POLL_S, patience_s):
            watch.see(hosts := _executor_hosts(self._context))
            if sum(hosts.values()) >= wanted or (settles and hosts and watch.silent_s > _SETTLE_S):
                return hosts
            time.sleep(pause_s)
        return _executor_hosts(self._context)


def spark_ranks(context: StepContext, *, cpu_ranks: int) -> SparkRanks:
    """Returns the ranks of the place ``spark``, on the executors of the step's application."""
    return SparkRanks(start_spark_context(context))


@dataclass(frozen=True)
class AgentTask:
    """A task that has called the driver back.

    ``host_hash`` is equal for tasks that share a host's memory and devices.
    """

    partition: int
    host: str
    host_hash: str
    connection: socket.socket

    def close(self) -> None:
        """Ends the connection for both sides."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class BarrierJob:
    """A barrier job with a number of tasks, which runs in a thread of the driver."""

    def __init__(self, context: Any, tasks: int) -> None:
        self._context, self._tasks = context, tasks
        self._secret = secrets.token_bytes(32)
        self._group = f"ranks-{secrets.token_hex(8)}"
        self._failure: Exception | None = None
        self._called: dict[int, AgentTask] = {}
        self._lost_before = _lost_executors(context)
        conf = context.getConf()
        host = conf.get("spark.driver.host")
        self._listener = socket.create_server((conf.get("spark.driver.bindAddress", host), 0), backlog=tasks)
        self._address = (host, self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._run, name=self._group, daemon=True)
        self._thread.start()

    def await_tasks(self) -> list[AgentTask]:
        """Waits until every task has called back once, and returns the tasks, those of one host side by side.

        Raises:
            HopsError: the job failed, or not all tasks have called in time.
        """
        results = self._called
        deadline = time.monotonic() + _CALL_BACK_S
        self._listener.settimeout(_POLL_S)
        try:
            while len(results) < self._tasks:
                called = f"{len(results)} of {self._tasks} tasks had called the driver back"
                so_far = f"{called} at {self._address[0]}:{self._address[1]}"
                if not self._thread.is_alive():
                    reason = self._failure or "no error"
                    raise HopsError(f"Spark's job of the ranks ended early, when {so_far}: {reason}")
                if time.monotonic() > deadline:
                    raise HopsError(f"after {_CALL_BACK_S:g} s, only {so_far}; is the cluster busy?")
                with contextlib.suppress(TimeoutError):
                    connection, _ = self._listener.accept()
                    try:
                        words = answer_task(connection, self._secret)
                    except (OSError, HopsError):  # a port scanner, or a task that died
                        connection.close()
                        continue
                    partition = words["partition"]
                    if partition in results:
                        connection.close()
                        raise HopsError(f"Spark restarted task {partition} of the ranks' job after it had failed")
                    results[partition] = AgentTask(partition, words["host"], words["host_hash"], connection)
        finally:
            # Spark 3.5: may restart a failed task, which cannot connect: ranks are not started twice.
            self._listener.close()
        return sorted(results.values(), key=lambda task: (task.host_hash, task.partition))

    def last_words(self) -> str:
        """Returns Spark's reports of executors lost since the job began, or the job's error."""
        for pause_s in pauses(_POLL_S, _LAST_WORDS_S):
            lost = dict(_lost_executors(self._context).items() - self._lost_before.items())
            if lost:
                return "\n".join(f"executor {number} is lost: {reason}" for number, reason in sorted(lost.items()))
            time.sleep(pause_s)
        return str(self._failure or "")

    def end(self) -> None:
        """Cancels the job, whose tasks end within seconds; it may be called more than once."""
        self._listener.close()
        if self._thread.is_alive():
            with contextlib.suppress(Exception):  # the JVM may have ended
                self._context.cancelJobGroup(self._group)
            self._thread.join(_END_S)
        for task in self._called.values():
            task.connection.close()

    def _run(self) -> None:
        try:
            with as_spark_failure():
                self._context.setJobGroup(self._group, f"{self._tasks} ranks", interruptOnCancel=True)
                numbers = self._context.parallelize(range(self._tasks), self._tasks)
                numbers.barrier().mapPartitions(partial(_be_agent, self._address, self._secret)).collect()
        except Exception as error:
            self._failure = error


def _be_agent(address: tuple[str, int], secret: bytes, partition: Iterable[int]) -> Iterator[None]:
    """Connects to the driver as an agent in a task, and serves it until the connection ends."""
    from pyspark import BarrierTaskContext

    from airflow_hops.extensions.ranks.ml.agent import serve_agent

    (number,) = partition
    resources = BarrierTaskContext.get().resources()
    if "gpu" in resources:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(resources["gpu"].addresses)
    # Containers may have the name of their host, but not its namespaces.
    host_hash = " ".join([socket.gethostname(), *sorted(str(f.readlink()) for f in Path("/proc/self/ns").iterdir())])
    words = {"partition": number, "host": socket.gethostname(), "host_hash": host_hash}
    with call_driver(address, secret, words) as connection:
        serve_agent(connection.fileno(), passes_notices=False)  # Spark 3.5: ends its workers by SIGTERM
    return iter(())


def _hosts_of(tasks: Sequence[AgentTask]) -> dict[str, int]:
    counts = Counter(task.host_hash for task in tasks)
    names = {task.host_hash: task.host for task in tasks}
    twice = {name for name, hosts in Counter(names.values()).items() if hosts > 1}
    return {hash_ if names[hash_] in twice else names[hash_]: count for hash_, count in counts.items()}


def _executor_hosts(context: Any) -> dict[str, int]:
    """Returns the hosts of the current executors, with the number of tasks that each can run at once.

    Spark counts cores by ``spark.task.cpus`` and GPUs by ``spark.task.resource.gpu.amount``.
    """
    slots: Counter[str] = Counter()
    for executor in _each(_status(context).executorList(True)):
        if executor.maxTasks() and not executor.isExcluded():
            slots[executor.hostPort().rpartition(":")[0]] += executor.maxTasks()
    return dict(sorted(slots.items()))


def _most_slots(context: Any) -> int | None:
    """Returns the maximum number of slots that an application requests, or None if its properties do not limit it."""
    conf, master = context.getConf(), context.master
    cpus = int(conf.get("spark.task.cpus", "1"))
    limits = []
    if cluster := _LOCAL_CLUSTER.match(master):
        limits.append(int(cluster[1]) * (int(cluster[2]) // cpus))
    elif master.startswith("local"):
        return sum(_executor_hosts(context).values()) or None
    if conf.contains("spark.cores.max"):
        limits.append(int(conf.get("spark.cores.max")) // cpus)
    if conf.contains("spark.executor.instances") and conf.contains("spark.executor.cores"):
        limits.append(int(conf.get("spark.executor.instances")) * (int(conf.get("spark.executor.cores")) // cpus))
    return min(limits, default=None)


def _lost_executors(context: Any) -> dict[str, str]:
    """Returns the reasons of lost executors by id, where the cluster has reported them."""
    return {
        executor.id(): " ".join(executor.removeReason().get().split())
        for executor in _each(_status(context).executorList(False))
        if not executor.isActive() and executor.removeReason().isDefined()
    }


def _status(context: Any) -> Any:
    """Returns Spark's status store of the application, which its web UI shows."""
    return context._jsc.sc().statusStore()


def _each(sequence: Any) -> Iterator[Any]:
    """Yields the elements of a Scala sequence."""
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()
