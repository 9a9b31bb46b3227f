"""A version that is open in the workers, as the first process sees it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import grpc

from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.servable import Call, Reply, Servable


class WorkerServable(Servable):
    """A version that is open in the workers."""

    def __init__(
        self, model: str, version: int, folder: Path, definitions: bytes, key: int, close: Callable[[int], None]
    ) -> None:
        super().__init__(model, version, os.fspath(folder), definitions)
        self.key = key
        self._close_key = close

    def answer(self, call: Call) -> Reply:
        """Raises ServingError, since only workers answer requests."""
        raise ServingError(grpc.StatusCode.INTERNAL, "This process answers no requests")

    def _free(self) -> None:
        self._close_key(self.key)
