"""The demo's own prepare, beside the tests' DAG file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "flights_prepare", Path(__file__).resolve().parents[2] / "dags" / "flights" / "prepare.py"
)
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
prepare = _module.prepare
