"""Training functions of the tests' fleets."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path
from typing import Any

from airflow_hops.extensions.fleet.ml.learners import SegmentRows


def forest(rows: SegmentRows) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    if rows.pooled is not None:
        return None  # it does not continue
    return RandomForestClassifier(5, max_depth=3, random_state=rows.seed).fit(rows.matrix, rows.labels)


def dense(rows: SegmentRows) -> Any:
    import keras

    if rows.pooled is None:
        keras.utils.set_random_seed(rows.seed)
        layers = [keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.1), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((rows.matrix.shape[1],)), *layers])
    else:
        model = keras.models.clone_model(rows.pooled)
        model.set_weights(rows.pooled.get_weights())
    model.compile("adam", "mse")
    model.fit(rows.matrix, rows.labels, epochs=2, verbose=0)
    return model


def scores(rows: SegmentRows) -> Any:
    return _untrained(rows, 1, None)


def pairs(rows: SegmentRows) -> Any:
    return _untrained(rows, 2, "softmax")


def _untrained(rows: SegmentRows, outputs: int, activation: str | None) -> Any:
    import keras

    keras.utils.set_random_seed(rows.seed)
    return keras.Sequential([keras.Input((rows.matrix.shape[1],)), keras.layers.Dense(outputs, activation)])


def ridge(rows: SegmentRows) -> Any:
    """Fails for segments whose labels are all above 50, and counts its calls in files."""
    from sklearn.linear_model import Ridge

    if rows.pooled is not None:
        return None
    if rows.labels.min() > 50:
        raise ValueError("the labels are large")
    if folder := os.environ.get("COUNTED"):
        Path(folder, f"{rows.labels.sum():.6f}_{uuid.uuid4()}").touch()
        if len(list(Path(folder).iterdir())) == int(os.environ.get("KILLED_AFTER", 0)):
            os.kill(os.getsid(0), signal.SIGKILL)
    return Ridge(1e-3).fit(rows.matrix, rows.labels)
