"""The GPUs of this host that a process may use."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        id: Name in ``CUDA_VISIBLE_DEVICES``: the UUID or, if the driver does not report it, the scheduler's name.
        name: Model, such as ``NVIDIA H200``; empty if the driver does not report it.
        memory_bytes: Total memory; 0 if the driver does not report it.
    """

    id: str
    name: str = ""
    memory_bytes: int = 0


def get_num_gpus() -> int:
    """Returns the number of GPUs that this process may use; within a training, those of its rank."""
    return len(get_gpus())


def get_gpus(env: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Returns the GPUs that this process may use, in the order of the assignment, or of the PCI bus.

    A scheduler's assignment (``CUDA_VISIBLE_DEVICES``: Slurm, Kubernetes, Spark, or a rank's own) takes precedence;
    without one, all GPUs that NVML finds are returned. TensorFlow is not asked, because it would reserve them.

    Args:
        env: Environment variables; pass those of another process to get its GPUs.
    """
    result = _by_nvml()
    assigned = env.get("CUDA_VISIBLE_DEVICES")
    if assigned is None:
        return result
    gpus: list[Gpu] = []
    for name in filter(None, (part.strip() for part in assigned.split(","))):
        if name == "-1" or (result and name.isdigit() and int(name) >= len(result)):
            break  # like CUDA, ignores devices after an invalid one
        gpus.append(_named(name, result))
    return gpus


class GpuMeter:
    """Samples memory and utilization of this rank's GPUs within the ``with`` block, by NVML.

    A sample is of the whole GPU, which a rank has for itself; without NVML there are no samples.
    """

    def __init__(self, gpus: Sequence[Gpu], every_s: float = 0.5) -> None:
        self._gpus, self._every_s = gpus, every_s
        self._peaks: dict[str, int] = {}
        self._utilization: dict[str, list[int]] = {gpu.id: [] for gpu in gpus}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="hops-gpu-meter", daemon=True)

    def __enter__(self) -> GpuMeter:
        if self._gpus:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        if self._gpus:
            self._thread.join()

    def usage(self) -> list[dict[str, object]]:
        """Returns ``name``, ``peak_memory_bytes`` and ``utilization`` (mean, 0 to 1; both None if unknown) by GPU."""
        return [
            {
                "name": gpu.name,
                "peak_memory_bytes": self._peaks.get(gpu.id),
                "utilization": round(sum(values) / len(values) / 100, 4) if values else None,
            }
            for gpu, values in zip(self._gpus, self._utilization.values(), strict=True)
        ]

    def _sample(self) -> None:
        with contextlib.suppress(Exception):  # pynvml is missing, or the driver fails: the training goes on
            import pynvml

            pynvml.nvmlInit()
            handles = {gpu.id: pynvml.nvmlDeviceGetHandleByUUID(gpu.id) for gpu in self._gpus}
            while not self._ended.wait(self._every_s):
                for name, handle in handles.items():
                    used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
                    self._peaks[name] = max(used, self._peaks.get(name, 0))
                    self._utilization[name].append(int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))


def _named(name: str, result: list[Gpu]) -> Gpu:
    if name.isdigit() and int(name) < len(result):
        return result[int(name)]
    return next((gpu for gpu in result if gpu.id.startswith(name)), Gpu(name))


def _by_nvml() -> list[Gpu]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # pynvml is missing, or the driver is missing or fails: no GPU
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
