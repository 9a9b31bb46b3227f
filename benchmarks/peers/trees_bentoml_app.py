"""LightGBM's trees behind BentoML: a service with one endpoint, one worker process."""

from __future__ import annotations

import os

import bentoml
import lightgbm
import numpy as np


@bentoml.service(workers=1, traffic={"timeout": 60}, metrics={"enabled": False})
class Trees:
    """The model."""

    def __init__(self) -> None:
        self._booster = lightgbm.Booster(model_file=os.environ["BENCHMARK_MODEL"])

    @bentoml.api
    def matrix(self, rows: list[list[float]]) -> list[float]:
        return list(self._booster.predict(np.array(rows, np.float32), num_threads=1))
