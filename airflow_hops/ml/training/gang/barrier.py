"""A barrier job of Spark: its tasks start together or not at all, and each becomes an agent for one rank."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.ml.spark.context import as_spark_failure
from airflow_hops.ml.training.gang.executors import lost_executors
from airflow_hops.ml.training.gang.handshake import answer_task, call_driver

_CALL_BACK_S = 120.0
_POLL_S = 0.1
_END_S = 4.0
_LAST_WORDS_S = 0.5


@dataclass(frozen=True)
class AgentTask:
    """A task that has called the driver back.

    Attributes:
        partition: Its number in the barrier job.
        host: Name of its host.
        host_hash: The same for tasks that share a host's memory and devices.
        connection: To the task.
    """

    partition: int
    host: str
    host_hash: str
    connection: socket.socket

    def close(self) -> None:
        """Ends the connection; whoever reads from it finds its end."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class BarrierJob:
    """A barrier job that runs in a thread of the driver.

    Args:
        context: The ``SparkContext``.
        tasks: How many there are.
    """

    def __init__(self, context: Any, tasks: int) -> None:
        self._context, self._tasks = context, tasks
        self._secret = secrets.token_bytes(32)
        self._group = f"ranks-{secrets.token_hex(8)}"
        self._failure: Exception | None = None
        self._lost_before = lost_executors(context)
        conf = context.getConf()
        host = conf.get("spark.driver.host")
        self._listener = socket.create_server((conf.get("spark.driver.bindAddress", host), 0), backlog=tasks)
        self._address = (host, self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._run, name=self._group, daemon=True)
        self._thread.start()

    def await_tasks(self) -> list[AgentTask]:
        """Waits until every task has called back, once.

        Returns:
            The tasks, those of one host side by side.

        Raises:
            HopsError: the job failed, or not all tasks have called in time.
        """
        results: dict[int, AgentTask] = {}
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
                    task = self._welcome(connection)
                    if task is not None and task.partition in results:
                        raise HopsError(f"Spark started task {task.partition} of the ranks' job again; it had failed")
                    if task is not None:
                        results[task.partition] = task
        except BaseException:
            for task in results.values():
                task.connection.close()
            raise
        finally:
            # Should Spark start a failed task again, it finds nobody: ranks are not started twice.
            self._listener.close()
        return sorted(results.values(), key=lambda task: (task.host_hash, task.partition))

    def last_words(self) -> str:
        """Returns Spark's reports of executors lost since the job began, or of the job if it has failed."""
        deadline = time.monotonic() + _LAST_WORDS_S
        while True:
            lost = dict(lost_executors(self._context).items() - self._lost_before.items())
            if lost:
                return "\n".join(f"executor {number} is lost: {reason}" for number, reason in sorted(lost.items()))
            if time.monotonic() > deadline:
                return str(self._failure or "")
            time.sleep(_POLL_S)

    def end(self) -> None:
        """Cancels the job; its tasks end within seconds."""
        self._listener.close()
        if self._thread.is_alive():
            with contextlib.suppress(Exception):  # the JVM may have gone
                self._context.cancelJobGroup(self._group)
            self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            with as_spark_failure():
                self._context.setJobGroup(self._group, f"{self._tasks} ranks", interruptOnCancel=True)
                numbers = self._context.parallelize(range(self._tasks), self._tasks)
                numbers.barrier().mapPartitions(partial(_be_agent, self._address, self._secret)).collect()
        except Exception as error:
            self._failure = error

    def _welcome(self, connection: socket.socket) -> AgentTask | None:
        try:
            words = answer_task(connection, self._secret)
        except (OSError, HopsError):  # a port scanner; a task that died
            connection.close()
            return None
        return AgentTask(words["partition"], words["host"], words["host_hash"], connection)


def _be_agent(address: tuple[str, int], secret: bytes, partition: Iterable[int]) -> Iterator[None]:
    """Connects to the driver as an agent in a task, and serves it until the connection ends."""
    from horovod.runner.common.util.host_hash import host_hash
    from pyspark import BarrierTaskContext

    from airflow_hops.ml.training.gang.agent import serve_agent

    (number,) = partition
    resources = BarrierTaskContext.get().resources()
    if "gpu" in resources:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(resources["gpu"].addresses)
    words = {"partition": number, "host": socket.gethostname(), "host_hash": host_hash()}
    with call_driver(address, secret, words) as connection:
        serve_agent(connection.fileno())
    return iter(())
