"""Calls a function in a process of its own, in which the package ``hops`` is there as in a step."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import airflow_hops.extensions.experiments.hops.experiment  # noqa: F401  # once for all forks
from airflow_hops.core.processes.programs import with_package
from airflow_hops.core.store import ArtifactStore


def step(
    environment: dict[str, str], root: str, folder: Path, function: Callable[[], Any], options: Mapping[str, Any]
) -> Any:
    from airflow_hops.ml.step.context import make_current
    from tests.ml.conftest import step_context

    os.environ |= environment
    sys.path[:0] = with_package({})["PYTHONPATH"].split(os.pathsep)
    values = {"run_id": "one", "task_id": "explore", **options}
    make_current(step_context(ArtifactStore(root), folder, **values))
    return function()
