"""Imports TensorFlow for running graphs: without Keras, in two fifths of the time.

TensorFlow 2.16 imports Keras, and with it scikit-learn, matplotlib and pandas, only to register its optimizers;
Google's API client for cloud machines; and SciPy and h5py, 16 MiB, for what it keeps of an older Keras. A process that
loads and runs SavedModels needs none of them. (Measured: 2.6 s with, 1.05 s without.) They stay importable afterwards,
Keras also as ``tf.keras``.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import Any

_LEFT_OUT = ("keras", "googleapiclient", "scipy", "h5py")


def import_tensorflow() -> Any:
    """The module ``tensorflow``; where nothing has imported it yet, without what running graphs does not need."""
    if "tensorflow" in sys.modules:
        return importlib.import_module("tensorflow")
    # Its greetings (GPU factories registered twice, instructions of the CPU) alarm and mean nothing; what fails raises.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    left_out = [name for name in _LEFT_OUT if name not in sys.modules]
    for name in left_out:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it raises ImportError, which is expected
    try:
        tensorflow = importlib.import_module("tensorflow")
    finally:
        for name in left_out:
            if sys.modules.get(name, ...) is None:
                del sys.modules[name]
    _restore_keras_paths(tensorflow)
    # "Assets written to", "contains input name(s)": nothing that anybody can act on.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    return tensorflow


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
