"""The executors of a Spark application, as its driver knows them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from airflow_hops.ml.training.gang.placement import Host

_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,")


def executor_hosts(context: Any) -> list[Host]:
    """The hosts of the executors that there are now, with the tasks that each can run at once.

    Spark counts cores by ``spark.task.cpus`` and GPUs by ``spark.task.resource.gpu.amount``.
    """
    slots: Counter[str] = Counter()
    for executor in _each(_status(context).executorList(True)):
        if executor.maxTasks() and not executor.isExcluded():
            slots[executor.hostPort().rpartition(":")[0]] += executor.maxTasks()
    return [Host(name, count) for name, count in sorted(slots.items())]


def most_slots(context: Any) -> int | None:
    """How many slots an application asks for at most, as far as its properties say."""
    conf, master = context.getConf(), context.master
    cpus = int(conf.get("spark.task.cpus", "1"))
    limits = []
    if cluster := _LOCAL_CLUSTER.match(master):
        limits.append(int(cluster[1]) * (int(cluster[2]) // cpus))
    elif master.startswith("local"):
        return sum(host.slots for host in executor_hosts(context)) or None
    if conf.contains("spark.cores.max"):
        limits.append(int(conf.get("spark.cores.max")) // cpus)
    if conf.contains("spark.executor.instances") and conf.contains("spark.executor.cores"):
        limits.append(int(conf.get("spark.executor.instances")) * (int(conf.get("spark.executor.cores")) // cpus))
    return min(limits, default=None)


def register_seconds(context: Any) -> int:
    """How long executors are given to register: ``spark.scheduler.maxRegisteredResourcesWaitingTime``, or a minute."""
    conf = context._jsc.sc().conf()
    return int(conf.getTimeAsSeconds("spark.scheduler.maxRegisteredResourcesWaitingTime", "60s"))


def lost_executors(context: Any) -> dict[str, str]:
    """The executors that have gone: why, by id, as far as the cluster has said so."""
    return {
        executor.id(): " ".join(executor.removeReason().get().split())
        for executor in _each(_status(context).executorList(False))
        if not executor.isActive() and executor.removeReason().isDefined()
    }


def _status(context: Any) -> Any:
    """Spark's own record of the application, which its web UI shows."""
    return context._jsc.sc().statusStore()


def _each(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()
