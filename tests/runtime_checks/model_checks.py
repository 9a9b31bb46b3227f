"""Looks at a model artifact with TensorFlow, and returns what it finds."""

from __future__ import annotations

from typing import Any

from airflow_hops.runtime.context import StepContext


def look_at(context: StepContext) -> dict[str, Any]:
    """Serves a few rows and reads the event files of an artifact in the role ``model``."""
    import tensorflow as tf

    folder = context.local("model")
    signature = tf.saved_model.load(str(folder / "saved_model")).signatures["serving_default"]
    answer = signature(
        a=tf.constant([-3.0, 0.0, 3.0]),
        b=tf.constant([-1.0, 0.0, 1.0]),
        kind=tf.constant([0, 1, 4], tf.int64),
        when=tf.constant([0, 0, 0], tf.int64),
    )
    events: dict[str, list[Any]] = {}
    for path in sorted((folder / "tensorboard").glob("*/events*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                events.setdefault(f"{path.parent.name}/{value.tag}", []).append(
                    [event.step, float(tf.make_ndarray(value.tensor))]
                )
    return {"probability": answer["probability"].numpy().tolist(), "events": events}
