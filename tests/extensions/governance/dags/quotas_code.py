"""A training that leaves a file as soon as it begins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def train(context: Any) -> Any:
    Path(os.environ["BEGAN"]).touch()
    from sklearn.dummy import DummyClassifier

    return DummyClassifier().fit([[0.0], [1.0]], [0, 1])
