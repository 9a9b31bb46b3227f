"""Imports of TensorFlow that take a part of its time and memory: for running graphs, making them, and statistics.

All of TensorFlow 2.16, in 3.7 s and 270 MiB, is its API of a thousand modules, and Keras. What loads and runs
SavedModels needs a tenth of it (:func:`without_api`); what makes graphs needs the API, but not Keras
(:func:`import_tensorflow`). Measured: 0.6 s and 80 MiB, 1.8 s and 160 MiB.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import site
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from airflow_hops.core.processes.garbage import uncollected

_LEFT_OUT = ("keras", "googleapiclient", "scipy", "h5py")


_importing = threading.RLock()


@contextlib.contextmanager
def without_api() -> Iterator[None]:
    """Lets a block import modules of TensorFlow's own (``tensorflow.python``) without all that ``tensorflow`` imports.

    Where that is imported already, or where it loads libraries of other devices or file systems, nothing changes.
    Afterwards it is importable as if nothing had happened, and is imported by whatever names it, such as an import of
    another of its modules outside of such a block.
    """
    # Its greetings (GPU factories registered twice, instructions of the CPU) alarm and mean nothing; what fails raises.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _importing:
        if "tensorflow" in sys.modules or _has_plugins():
            yield
            _log_errors_alone()
            return
        spec = importlib.util.find_spec("tensorflow")
        assert spec is not None and spec.submodule_search_locations is not None
        package = ModuleType("tensorflow")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["tensorflow"] = package
        try:
            with uncollected():
                yield
            _log_errors_alone()
        finally:
            if sys.modules.get("tensorflow") is package:
                del sys.modules["tensorflow"]


def _has_plugins() -> bool:
    """Whether importing ``tensorflow`` loads libraries besides TensorFlow's."""
    variables = ("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", "TF_USE_MODULAR_FILESYSTEM")
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return any(map(os.environ.get, variables)) or any(Path(path, "tensorflow-plugins").exists() for path in folders)


def _log_errors_alone() -> None:
    # "Assets written to", "contains input name(s)": nothing that anybody can act on.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


def import_tensorflow() -> Any:
    """The module ``tensorflow``; where nothing has imported it yet, without what making graphs does not need.

    It imports Keras, and with it scikit-learn, matplotlib and pandas, only to register its optimizers; Google's API
    client for cloud machines; and SciPy and h5py, 16 MiB, for what it keeps of an older Keras. They stay importable
    afterwards, Keras also as ``tf.keras``.
    """
    if "tensorflow" in sys.modules:
        return importlib.import_module("tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    left_out = [name for name in _LEFT_OUT if name not in sys.modules]
    for name in left_out:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it raises ImportError, which is expected
    try:
        with uncollected():
            tensorflow = importlib.import_module("tensorflow")
    finally:
        for name in left_out:
            if sys.modules.get(name, ...) is None:
                del sys.modules[name]
    _restore_keras_paths(tensorflow)
    _log_errors_alone()
    return tensorflow


def import_tfdv() -> Any:
    """The module ``tensorflow_data_validation``; where nothing has imported TensorFlow yet, with that part of it."""
    if "tensorflow_data_validation" not in sys.modules:
        import_tensorflow()
        with uncollected():
            importlib.import_module("tensorflow_data_validation")
    return sys.modules["tensorflow_data_validation"]


def _restore_keras_paths(tensorflow: Any) -> None:
    """Lets ``import tensorflow.keras`` find Keras, which TensorFlow looked for in vain."""
    keras = importlib.util.find_spec("keras")
    if keras is None or keras.origin is None:
        return
    folder = Path(keras.origin).parent
    found = [str(folder / "api" / "_v2"), str(folder / "_tf_keras")]
    tensorflow.__path__ = [*found, *(path for path in tensorflow.__path__ if path and path not in found)]


def use_one_thread() -> None:
    """Has TensorFlow work in one thread, in a Python worker of Spark's, which runs one for each core."""
    threading = import_tensorflow().config.threading
    try:
        threading.set_intra_op_parallelism_threads(1)
        threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:  # already in use in this process
        pass
