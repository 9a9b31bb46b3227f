"""Probe of the runtime environment: ``python -m airflow_hops.ml.step.probe`` prints libraries and devices."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import socket
import time
import traceback
import uuid
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_hops.core.errors import HopsError

if TYPE_CHECKING:
    from airflow_hops.ml.step.context import StepContext

DISTRIBUTIONS = {
    "google.protobuf": "protobuf",
    "tensorflow": "tensorflow",
    "horovod.tensorflow": "horovod",
    "tensorflow_serving.apis.predict_pb2": "tensorflow-serving-api",
    "tensorflow_data_validation": "tensorflow-data-validation",
    "pyspark.sql": "pyspark",
    "mlflow": "mlflow",
}
"""Distributions by module, in import order."""


def probe() -> dict[str, object]:
    """Imports the modules that steps need.

    Returns:
        ``modules``: per module its ``version``, ``seconds`` of the import in addition to earlier ones, and ``error``
        (None if it imports; for Horovod, which is optional, also if it is not installed). With TensorFlow, ``gpus``
        (names of its GPUs) and ``no_gpu`` (the reason if it finds none). With Horovod, ``horovod`` (its build features;
        NCCL by its version, as in ``nccl.h``).
    """
    report: dict[str, Any] = {"modules": {}}
    for module, distribution in DISTRIBUTIONS.items():
        begun = time.monotonic()
        error = _failure(lambda module=module: importlib.import_module(module))  # type: ignore[misc]
        seconds = round(time.monotonic() - begun, 2)
        report["modules"][module] = {"version": _version(distribution), "seconds": seconds, "error": error}
    if report["modules"]["tensorflow"]["error"] is None:
        import tensorflow

        report["gpus"] = [device.name for device in tensorflow.config.list_physical_devices("GPU")]
        report["no_gpu"] = None if report["gpus"] else why_no_gpu()
    horovod = report["modules"]["horovod.tensorflow"]
    if find_spec("horovod") is None:
        horovod["error"] = None  # an option
    elif horovod["error"] is None:
        import horovod.tensorflow as hvd

        report["horovod"] = {"gloo": bool(hvd.gloo_built()), "mpi": bool(hvd.mpi_built()), "nccl": hvd.nccl_built()}
    return report


def run(context: StepContext) -> dict[str, Any]:
    """Returns the findings of :func:`probe`, with ``host``, ``cores`` and ``memory_bytes``; the stage of the doctor.

    Raises:
        HopsError: the store cannot be written or read.
    """
    place = context.store.internal("_state", "doctor", f"{uuid.uuid4()}.json")
    context.store.write_text(place, json.dumps(place))
    try:
        if context.store.read_json(place) != place:
            raise HopsError(f"{place}: another text was read than was written")
    finally:
        context.store.remove_text(place)
    return {**probe(), **machine()}


def machine() -> dict[str, Any]:
    """Returns ``host``, ``cores`` and ``memory_bytes`` of this machine or container."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return {"host": socket.gethostname(), "cores": len(os.sched_getaffinity(0)), "memory_bytes": memory}


def why_no_gpu(driver_name: str = "libcuda.so.1") -> str:
    """Returns the reason why CUDA has no GPU for this process, according to its driver."""
    try:
        driver = ctypes.CDLL(driver_name)
    except OSError as error:
        return f"there is no NVIDIA driver ({error})"
    assigned = os.environ.get("CUDA_VISIBLE_DEVICES")
    if assigned is not None and assigned.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES is {assigned!r}"
    if code := driver.cuInit(0):
        return f"the NVIDIA driver finds none (cuInit: error {code})"
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    return f"the driver, of CUDA {version.value // 1000}.{version.value % 1000 // 10}, works, but not for TensorFlow"


def _failure(action: Callable[[], object]) -> str | None:
    try:
        action()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
    return None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    print(json.dumps(probe()))
