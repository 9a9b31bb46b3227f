"""Runs a step of a served model in a process that is killed right before one of the things that it does."""

from __future__ import annotations

import importlib
import os
import signal
from typing import Any

from airflow_hops.core.store import ArtifactStore, ArtifactWriter
from airflow_hops.hops import StepContext
from airflow_hops.ml.model_server import ModelServer
from airflow_hops.ml.tracking import ModelRegistry

POINTS: dict[str, tuple[type, str]] = {
    "folder": (ModelServer, "publish"),
    "record": (ArtifactStore, "write_text"),
    "traffic": (ModelServer, "set_traffic"),
    "labels": (ModelServer, "set_labels"),
    "versions": (ModelServer, "serve"),
    "withdrawal": (ModelServer, "withdraw"),
    "champion": (ModelRegistry, "set_alias"),
    "challenger": (ModelRegistry, "delete_alias"),
    "tag": (ModelRegistry, "tag"),
    "artifact": (ArtifactWriter, "commit"),
}


def run(context: StepContext, *, entry: str, before: str, **params: Any) -> Any:
    """A step, up to the first call of a method of :data:`POINTS`."""
    owner, name = POINTS[before]
    setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    module, _, function = entry.partition(":")
    return getattr(importlib.import_module(module), function)(context, **params)
