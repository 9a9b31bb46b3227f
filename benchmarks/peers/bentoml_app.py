"""The models behind BentoML: a service with an endpoint a model, one worker process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import bentoml

from benchmarks.peers.served_model import SavedModel

MODELS = Path(os.environ.get("BENCHMARK_MODELS", "."))


@bentoml.service(workers=1, traffic={"timeout": 60}, metrics={"enabled": False})
class Models:
    """Both models."""

    def __init__(self) -> None:
        self._mlp = SavedModel(str(MODELS / "mlp" / "1"))
        self._flights = SavedModel(str(MODELS / "flights" / "1"))

    @bentoml.api
    def mlp(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: array.tolist() for name, array in self._mlp(inputs).items()}

    @bentoml.api
    def flights(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: array.tolist() for name, array in self._flights(inputs).items()}
