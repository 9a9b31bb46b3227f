"""The GPUs of this host that are this process's to use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        id: What ``CUDA_VISIBLE_DEVICES`` calls it: its UUID where the driver tells, else what the scheduler calls it.
        name: The model, ``NVIDIA H200``; empty where the driver does not tell.
        memory_bytes: Of all its memory; 0 where the driver does not tell.
    """

    id: str
    name: str = ""
    memory_bytes: int = 0


def get_num_gpus() -> int:
    """How many GPUs this process may use; within a training, those of its rank."""
    return len(get_gpus())


def get_gpus(environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """The GPUs that this process may use.

    A scheduler's assignment (``CUDA_VISIBLE_DEVICES``: Slurm, Kubernetes, Spark, or a rank's own) comes first; without
    one, they are all that NVML finds. TensorFlow is not asked, which would take them.

    Args:
        environment: Variables of another process, whose GPUs are meant.

    Returns:
        In the order of the assignment, or of the PCI bus.
    """
    found = _by_nvml()
    assigned = environment.get("CUDA_VISIBLE_DEVICES")
    if assigned is None:
        return found
    gpus: list[Gpu] = []
    for name in filter(None, (part.strip() for part in assigned.split(","))):
        if name == "-1" or (found and name.isdigit() and int(name) >= len(found)):
            break  # as CUDA itself: what comes after an invalid one does not count
        gpus.append(_named(name, found))
    return gpus


def _named(name: str, found: list[Gpu]) -> Gpu:
    if name.isdigit() and int(name) < len(found):
        return found[int(name)]
    return next((gpu for gpu in found if gpu.id.startswith(name)), Gpu(name))


def _by_nvml() -> list[Gpu]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library of that name, no driver, or one that does not answer: no GPU either way
        return []
    try:
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid, name = (_text(each) for each in (pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)))
            gpus.append(Gpu(uuid, name, int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)))
        return gpus
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
