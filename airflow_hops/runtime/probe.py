"""What the runtime environment holds and can do: ``python -m airflow_hops.runtime.probe`` prints it as JSON.

Each group of libraries is imported in a process of its own: in parallel they take no longer than the slowest.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from typing import Any

DISTRIBUTIONS = {
    "tensorflow": "tensorflow",
    "tensorflow_data_validation": "tensorflow-data-validation",
    "horovod.tensorflow": "horovod",
    "tensorflow_serving.apis.predict_pb2": "tensorflow-serving-api",
    "pyspark.sql": "pyspark",
    "mlflow": "mlflow",
    "google.protobuf": "protobuf",
}

GROUPS = {
    "training": ("google.protobuf", "tensorflow", "horovod.tensorflow", "tensorflow_serving.apis.predict_pb2"),
    "data": ("tensorflow_data_validation", "pyspark.sql", "mlflow"),
}
"""Modules that are imported together."""


def probe(group: str) -> dict[str, Any]:
    """Imports a group's modules.

    Args:
        group: A key of :data:`GROUPS`.

    Returns:
        For each module: ``version``, ``seconds`` of the import, and ``error`` (None when it imports). The group
        ``training`` adds ``gpus`` (names that TensorFlow sees), ``no_gpu`` (why it sees none) and ``horovod`` (what it
        was built with; NCCL by its version, as in ``nccl.h``).
    """
    found: dict[str, Any] = {"modules": {}}
    for module in GROUPS[group]:
        begun = time.monotonic()
        error = _failure(lambda module=module: importlib.import_module(module))  # type: ignore[misc]
        found["modules"][module] = {
            "version": _version(DISTRIBUTIONS[module]),
            "seconds": round(time.monotonic() - begun, 2),
            "error": error,
        }
    if group == "training":
        if found["modules"]["tensorflow"]["error"] is None:
            import tensorflow

            found["gpus"] = [device.name for device in tensorflow.config.list_physical_devices("GPU")]
            found["no_gpu"] = None if found["gpus"] else why_no_gpu()
        if found["modules"]["horovod.tensorflow"]["error"] is None:
            import horovod.tensorflow as hvd

            found["horovod"] = {"gloo": bool(hvd.gloo_built()), "mpi": bool(hvd.mpi_built()), "nccl": hvd.nccl_built()}
    return found


def why_no_gpu(driver_name: str = "libcuda.so.1") -> str:
    """Why CUDA has no GPU for this process, as far as its driver says."""
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
    print(json.dumps(probe(sys.argv[1])))
