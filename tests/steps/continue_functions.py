"""Training functions that continue from the champion."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from airflow_hops.hops import TrainContext


def fit(context: TrainContext) -> Any:
    """One epoch of a Keras model, from the champion's weights, or from those of a file."""
    import numpy as np
    from training_functions import compiled

    model = compiled(context)
    if "weights" in context.params:
        with np.load(context.params["weights"]) as stored:
            model.set_weights([stored[name] for name in sorted(stored.files)])
    elif context.champion is not None:
        context.champion.load(model)
    context.fit(model, epochs=1, batch_size=100)
    return model


def learn_more(context: TrainContext) -> Any:
    """One pass over the rows by a linear model; a first try that is to wait waits after a checkpoint."""
    from sklearn.linear_model import SGDClassifier

    champion, rows = context.champion, context.table("train")
    model = SGDClassifier(loss="log_loss", random_state=0) if champion is None else champion.load()
    if (marker := context.params.get("waits")) and not Path(marker).exists():
        context.checkpoint_files(1, {"champion": str(champion).encode()})
        Path(marker).write_text(str(os.getpid()))
        time.sleep(600)
    if marker:
        print(f"resumed: {context.resumed_files()['champion'].decode()}, window {champion.window}", flush=True)
    return model.partial_fit(rows.matrix(), rows.labels, classes=[0, 1])


def ignore(context: TrainContext) -> Any:
    """Uses nothing of the champion but its window."""
    from sklearn.linear_model import LogisticRegression

    rows = context.table("train")
    print(context.champion.window if context.champion else None, flush=True)
    return LogisticRegression().fit(rows.matrix(), rows.labels)
