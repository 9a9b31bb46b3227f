"""Looks at a canary in a process that is killed right before one of the things that a look does."""

from __future__ import annotations

import os
import signal
from typing import Any

from airflow_hops.artifacts import Artifact
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.model_server import ModelServer
from airflow_hops.runtime.rollout import look as real_look
from airflow_hops.runtime.tracking import ModelRegistry
from airflow_hops.store import ArtifactStore, ArtifactWriter

POINTS: dict[str, tuple[type, str]] = {
    "record": (ArtifactStore, "write_text"),
    "traffic": (ModelServer, "set_traffic"),
    "labels": (ModelServer, "set_labels"),
    "versions": (ModelServer, "serve"),
    "champion": (ModelRegistry, "set_alias"),
    "challenger": (ModelRegistry, "delete_alias"),
    "tag": (ModelRegistry, "tag"),
    "artifact": (ArtifactWriter, "commit"),
}


def look(context: StepContext, *, before: str, **params: Any) -> Artifact | dict[str, Any]:
    """The rollout's step, up to the first call of a method of :data:`POINTS`."""
    owner, name = POINTS[before]
    setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    return real_look(context, **params)
