"""Tests a connection of type ``horovod``: a rank on every host meets the others."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from airflow_hops.extensions.ranks.ml.ssh import SshRanks
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.training.gang import Channel, Placement, RankJob, run_gang
from airflow_hops.ml.training.gang.crew import Where, rank_launcher

_ANSWER_S = 60.0


def run(context: StepContext, *, where: Where) -> list[str]:
    """Runs a rank on every host of a place, or on this machine.

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
        launcher = SshRanks(dict.fromkeys(launcher.hosts, 1), launcher.settings)
    return run_gang(
        RankJob("airflow_hops.extensions.ranks.ml.examine:describe_host"),
        ranks,
        logs=context.scratch / "logs",
        launcher=launcher,
        stall_timeout_s=_ANSWER_S,
    )


def describe_host(placement: Placement, channel: Channel, *, folders: Mapping[str, Path]) -> str:
    """Describes the host of a rank, after the rank has met the others."""
    from airflow_hops.ml.training.collectives import check_horovod, hvd

    check_horovod()
    hvd.init()
    hvd.allgather_object(placement.host)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("tensorflow", "keras", "horovod"))
    return f"{placement.host}: {sys.executable}, Python {platform.python_version()}, {libraries}"
