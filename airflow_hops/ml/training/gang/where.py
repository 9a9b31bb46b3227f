"""Launchers of a step's ranks, from the operator's description."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.extensions.hosts.ml.ssh import SshRanks, SshSettings, parse_hosts
from airflow_hops.extensions.kubernetes.ml.pods import PodRanks
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.training.gang.crew import Channel, Host, Placement, RankJob, RankLauncher
from airflow_hops.ml.training.gang.forked import LocalRanks
from airflow_hops.ml.training.gang.supervisor import run_gang

_ANSWER_S = 60.0

Where = Mapping[str, Any]
"""The place of ranks: ``kind`` and its options, such as ``{"kind": "ssh", "hosts": "gpu-1:4,gpu-2:4"}``."""


def rank_launcher(where: Where | None, context: StepContext, *, cpu_ranks: int = 0) -> RankLauncher:
    """Returns the launcher of ranks for an operator's ``where``.

    Args:
        where: ``kind`` and its options: ``local`` or ``kubernetes`` with ``slots``; ``spark``; ``ssh`` with ``hosts``,
            ``hosts_from`` (source of the hosts, for errors), ``user``, ``port``, ``key_file``, ``config_file``,
            ``python`` and ``address``. Missing or None options have their defaults; None is all slots of this machine.
        context: Context of the step, which for ranks on Spark was launched with spark-submit. It must not have started
            a thread.
        cpu_ranks: Number of ranks without a GPU.

    Raises:
        BadInput: the hosts cannot be used.
    """
    where = where or {"kind": "local"}
    match where["kind"]:
        case "local":
            return LocalRanks(where.get("slots"), cpu_ranks)
        case "ssh":
            names = ("user", "port", "key_file", "config_file", "python", "address")
            settings = {name: where[name] for name in names if where.get(name)}
            return SshRanks(parse_hosts(where["hosts"], where.get("hosts_from", "hosts")), SshSettings(**settings))
        case "kubernetes":
            return PodRanks(where["slots"])
        case "spark":
            from airflow_hops.ml.spark.context import start_spark_context
            from airflow_hops.ml.training.gang.spark import SparkRanks

            return SparkRanks(start_spark_context(context))
    raise BadInput(f"where is {dict(where)!r}, expected kind 'local', 'ssh', 'kubernetes' or 'spark'")


def examine(context: StepContext, *, where: Where) -> list[str]:
    """Tests a connection of kind ``ssh`` or ``local`` as a step: a rank on every host meets the others.

    Returns:
        A description of each host.

    Raises:
        BadInput: a host cannot run ranks.
        HopsError: a host cannot be reached by this one or by the others.
    """
    launcher = rank_launcher(where, context)
    ranks = 1
    if isinstance(launcher, SshRanks):
        ranks = len(launcher.hosts)
        launcher = SshRanks([Host(host.name, 1) for host in launcher.hosts], launcher.settings)
    return run_gang(
        RankJob("airflow_hops.ml.training.gang.where:describe_host"),
        ranks,
        logs=context.scratch / "logs",
        launcher=launcher,
        stall_timeout_s=_ANSWER_S,
    )


def describe_host(placement: Placement, channel: Channel, *, folders: Mapping[str, Path]) -> str:
    """Describes the host of a rank for :func:`examine`, after the rank has met the others."""
    import horovod.tensorflow as hvd

    hvd.init()
    hvd.allgather_object(placement.host)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("tensorflow", "keras", "horovod"))
    return f"{placement.host}: {sys.executable}, Python {platform.python_version()}, {libraries}"
