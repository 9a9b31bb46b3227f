"""What the runtime environment holds and can do: ``python -m airflow_hops.runtime.probe`` prints it as JSON.

Each group of libraries is imported in a process of its own: in parallel they take no longer than the slowest.
"""

from __future__ import annotations

import importlib
import json
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
        ``training`` adds ``gpus`` (names that TensorFlow sees) and ``horovod`` (what it was built with).
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
        if found["modules"]["horovod.tensorflow"]["error"] is None:
            import horovod.tensorflow as hvd

            found["horovod"] = {"gloo": bool(hvd.gloo_built()), "mpi": bool(hvd.mpi_built()), "nccl": hvd.nccl_built()}
    return found


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
