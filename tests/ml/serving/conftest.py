"""Tests of the model server: clients that know nothing of the server's code."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what starts a server, so that ``make check`` runs the others alone."""
    for item in items:
        fixtures = {*getattr(item, "fixturenames", ())}
        if Path(__file__).parent in item.path.parents and fixtures & {"capture", "runtime_python"}:
            item.add_marker("server")
