"""Steps of windows that are scored: a model that adds a number, and a scoring that says which process it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.extensions.scoring.ml import stage
from airflow_hops.hops import StepContext


def write_model(context: StepContext, *, plus: float) -> Artifact:
    """Writes a SavedModel."""
    import tensorflow as tf

    module = tf.Module()
    signature = [tf.TensorSpec([None], tf.float32, "x")]
    module.serve = tf.function(lambda x: {"probability": x + plus}, input_signature=signature)
    with context.output() as writer:
        tf.saved_model.save(module, str(writer.path / "saved_model"), signatures={"serving_default": module.serve})
        return writer.commit()


def score(context: StepContext, *, pid: str, **params: Any) -> Artifact:
    """Scores as ``ScoreOperator``, and writes the process's id."""
    Path(pid).write_text(str(os.getpid()))
    return stage.run(context, **params)
