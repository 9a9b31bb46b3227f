"""Back-tests in the store: ``<store>/_backtests/<model>/<id>/backtest.json`` and, if chosen, ``policy.json``."""

from __future__ import annotations

import re

from airflow_hops.core.store.artifact_store import ArtifactStore

_FOLDER = "_backtests"
ID_PATTERN = r"^[0-9A-Za-z][0-9A-Za-z-]{0,63}$"
"""Pattern of a back-test's id, its start with some letters: ``20131101T101112Z-1a2b``."""


def backtest_uri(store: ArtifactStore, model_name: str, backtest_id: str) -> str:
    """Returns the address of a back-test's folder."""
    return store.internal(_FOLDER, model_name, backtest_id)


def backtest_ids(store: ArtifactStore, model_name: str) -> list[str]:
    """Returns the ids of a model's back-tests, newest first, possibly including a killed one."""
    names = store.names(store.internal(_FOLDER, model_name))
    return [name for name in reversed(names) if re.fullmatch(ID_PATTERN, name)]
