"""Runs searches, and programs that use the package ``hops``, in a process of their own, with a store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hops_steps import step
from searches import Searches

from airflow_hops.core.store import ArtifactStore


@pytest.fixture
def as_step(store: ArtifactStore, tmp_path: Path, own_process: Any) -> Callable[..., Any]:
    """Calls a function in a step's process: ``as_step(function, services={…}, params={…})``."""

    def call(function: Callable[[], Any], **options: Any) -> Any:
        return own_process(step, dict(os.environ), store.root, tmp_path, function, options)

    return call


@pytest.fixture
def searches(store: ArtifactStore, tmp_path: Path, own_process: Any) -> Searches:
    """Runs the search stage in a process of its own, in the test's own store."""
    return Searches(store, tmp_path, own_process)
