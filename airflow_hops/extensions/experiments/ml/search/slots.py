"""Divides the place of a step's ranks into slots for parallel trials."""

from __future__ import annotations

import os

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.devices import get_num_gpus
from airflow_hops.ml.training.gang import LocalRanks, RankLauncher

Slot = tuple[RankLauncher, frozenset[int]]
"""Share of the resources for one trial at a time: launcher of its ranks, and its cores of this machine (none: all)."""


def divide(launcher: RankLauncher, parallel: int, ranks: int) -> list[Slot]:
    """Divides a launcher's resources among parallel trials of ``ranks`` ranks.

    Cores of this machine are divided; if there are more slots than cores, they share them. Each trial leases its own
    GPUs. Other places divide themselves: :meth:`airflow_hops.ml.training.gang.crew.RankLauncher.divide`.

    Raises:
        BadInput: the resources are insufficient.
    """
    is_local = isinstance(launcher, LocalRanks)
    try:
        if not is_local or get_num_gpus() or ranks > 1:
            launchers = launcher.divide(parallel, ranks)
    except BadInput as error:
        raise BadInput(
            f"parallel is {parallel} and np {ranks}, so that {parallel * ranks} ranks run at once; lower parallel or "
            f"np: {error}"
        ) from error
    if not is_local:
        return [(each, frozenset()) for each in launchers]
    cores = sorted(os.sched_getaffinity(0))
    shares = [cores[number % len(cores) :: parallel] for number in range(parallel)]
    return [(LocalRanks(max(ranks, 1)), frozenset(share)) for share in shares]
