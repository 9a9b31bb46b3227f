"""tf_keras (Keras 2) with Horovod, in a process that has already imported TensorFlow and Keras 3."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from tensorflow.python.autograph.core import config as autograph


def leave_unconverted(*packages: str) -> None:
    """Makes AutoGraph leave the code of packages unconverted, as it does for TensorFlow and Keras.

    tf_keras and Horovod are written for graphs, and converting the code of one step takes ten seconds.
    """
    autograph.CONVERSION_RULES = (*map(autograph.DoNotConvert, packages), *autograph.CONVERSION_RULES)


def use_tf_keras() -> None:
    """Makes ``tensorflow.keras`` refer to tf_keras from now on, as ``TF_USE_LEGACY_KERAS=1`` does in a new process.

    A rank is forked from a process that has imported TensorFlow and Keras 3, so setting the variable is too late. Call
    this before running code that imports ``tensorflow.keras`` or ``horovod.tensorflow.keras``. Horovod's callbacks,
    which use the package ``keras`` as backend and therefore fail with Keras 3, work as well.
    """
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    leave_unconverted("tf_keras")
    import tensorflow as tf
    import tf_keras.api._v2.keras as legacy

    from airflow_hops.ml.training.collectives import has_horovod, hvd

    folder = str(Path(legacy.__file__).parent.parent)
    tf.__path__ = [folder, *(path for path in tf.__path__ if path != folder)]
    for name in [name for name in sys.modules if f"{name}.".startswith("tensorflow.keras.")]:
        del sys.modules[name]
    tf.keras = legacy
    if not has_horovod():
        return
    from horovod.tensorflow import sync_batch_norm

    importlib.reload(sync_batch_norm)  # its class is a tensorflow.keras layer
    hvd.SyncBatchNormalization = sync_batch_norm.SyncBatchNormalization
    for name in ("horovod.tensorflow.keras", "horovod.tensorflow.keras.callbacks"):
        module: Any = importlib.import_module(name)
        module.K = legacy.backend
