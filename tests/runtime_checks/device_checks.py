"""GPUs that ranks are given; on a machine without any, those that a scheduler's assignment names."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from airflow_hops.artifacts import HopsError
from airflow_hops.hops.devices import Gpu, get_gpus, get_num_gpus
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.gang import Channel, LocalRanks, Placement, run_gang
from airflow_hops.runtime.gang.elastic import Elastic, run_elastic_gang
from airflow_hops.runtime.gang.leases import GpuLeases
from airflow_hops.runtime.gang.meeting import Membership


def count(context: StepContext, *, assignments: list[str]) -> dict[str, Any]:
    """How many GPUs each assignment means, and what they are called."""
    found = {}
    for assigned in assignments:
        os.environ["CUDA_VISIBLE_DEVICES"] = assigned
        found[assigned] = {"number": get_num_gpus(), "ids": [gpu.id for gpu in get_gpus()]}
    return found


def gang(
    context: StepContext,
    *,
    assigned: str,
    folder: str,
    ranks: int,
    hold_s: float = 0.0,
    env: dict[str, str] | None = None,
) -> Any:
    """What each rank sees of the GPUs, leased in ``folder``; rank 0 holds its own for a while, saying so by a file."""
    os.environ["CUDA_VISIBLE_DEVICES"] = assigned
    os.environ["HOPS_GPU_LEASES"] = folder

    def work(placement: Placement, channel: Channel) -> dict[str, Any]:
        if hold_s:
            (Path(folder) / f"held-{placement.rank}").write_text(str(os.getpid()))
            time.sleep(hold_s)
        return {"sees": os.environ["CUDA_VISIBLE_DEVICES"], "number": get_num_gpus()}

    slots = LocalRanks().slots
    found = run_gang(work, ranks, logs=context.scratch / "logs", launcher=LocalRanks(ranks), environment=env)
    return {"slots": slots, "ranks": found}


def elastic_gang(context: StepContext, *, assigned: str, folder: str) -> Any:
    """The second of two ranks dies, and one of two in reserve takes its slot; what those that are left see."""
    os.environ["CUDA_VISIBLE_DEVICES"] = assigned
    os.environ["HOPS_GPU_LEASES"] = folder

    def work(placement: Placement, channel: Channel) -> dict[str, Any]:
        membership = Membership(placement, channel)
        membership.begin()
        if membership.member == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if membership.member == 0:
            membership.meet("rank 1 has gone")
        return {"member": membership.member, "slot": membership.slot, "sees": os.environ["CUDA_VISIBLE_DEVICES"]}

    ranks = run_elastic_gang(
        work, 2, elastic=Elastic(1, cooldown_s=0), logs=context.scratch / "logs", launcher=LocalRanks()
    )
    return {"ranks": ranks, "leased": sorted(lock.stem for lock in Path(folder).glob("*.lock"))}


def leases(context: StepContext, *, folder: str) -> dict[str, str]:
    """Locks that cannot be had: files that are not ours to write, and links to what is no lock."""
    gpus = [Gpu("GPU-a")]
    os.environ["HOPS_GPU_LEASES"] = folder
    found = {}
    lock, precious = Path(folder, "GPU-a.lock"), Path(folder, "precious")
    precious.write_text("do not touch")
    for name, prepare in {"link": lambda: lock.symlink_to(precious), "folder": lock.mkdir}.items():
        prepare()
        try:
            found[name] = str(GpuLeases(gpus, 1, "me").ids)
        except HopsError as error:
            found[name] = f"{type(error).__name__}: {error}"
        lock.unlink() if lock.is_symlink() else lock.rmdir()
    return {**found, "precious": precious.read_text()}
