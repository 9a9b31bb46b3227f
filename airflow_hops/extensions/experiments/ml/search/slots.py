"""Divides the machine or the hosts into slots for parallel trials."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.extensions.hosts.ml.ssh import SshRanks
from airflow_hops.ml.training.devices import get_num_gpus
from airflow_hops.ml.training.gang import Host, LocalRanks, RankLauncher


@dataclass(frozen=True)
class Slot:
    """Share of the resources for one trial at a time.

    Attributes:
        launcher: Launcher of the trials' ranks.
        cores: Cores of this machine that its trials may use; empty for all.
        host: Description of the hosts.
    """

    launcher: RankLauncher
    cores: frozenset[int] = frozenset()
    host: str = ""


def divide(launcher: RankLauncher, parallel: int, ranks: int) -> list[Slot]:
    """Divides a launcher's resources among parallel trials of ``ranks`` ranks.

    Cores of this machine are divided; if there are more slots than cores, they share them. Each trial leases its own
    GPUs. Hosts are divided by their slots. Spark places its tasks itself.

    Raises:
        BadInput: the resources are insufficient.
    """
    if isinstance(launcher, LocalRanks):
        return _local_slots(launcher, parallel, ranks)
    if isinstance(launcher, SshRanks):
        free = [Host(host.name, 1) for host in launcher.hosts for _ in range(host.slots)]
        _check(parallel, ranks, len(free), "slots of hosts")
        shares = [free[number * ranks : (number + 1) * ranks] for number in range(parallel)]
        return [
            Slot(SshRanks(_merged(share), launcher.settings), host=",".join(dict.fromkeys(h.name for h in share)))
            for share in shares
        ]
    launcher.place(parallel * ranks)
    return [Slot(launcher, host="spark")] * parallel


def _local_slots(launcher: LocalRanks, parallel: int, ranks: int) -> list[Slot]:
    cores = sorted(os.sched_getaffinity(0))
    if get_num_gpus() or ranks > 1:
        _check(parallel, ranks, launcher.slots, "GPUs" if get_num_gpus() else "slots of this machine")
    shares = [cores[number % len(cores) :: parallel] for number in range(parallel)]
    return [Slot(LocalRanks(max(ranks, 1)), frozenset(share), socket.gethostname()) for share in shares]


def _check(parallel: int, ranks: int, slots: int, what: str) -> None:
    if parallel * ranks > slots:
        raise BadInput(
            f"parallel is {parallel} and np {ranks}, so that {parallel * ranks} ranks run at once, but there are only "
            f"{slots} {what}; lower parallel or np"
        )


def _merged(hosts: Sequence[Host]) -> list[Host]:
    counts: dict[str, int] = {}
    for host in hosts:
        counts[host.name] = counts.get(host.name, 0) + host.slots
    return [Host(name, slots) for name, slots in counts.items()]
