"""Keeps PyArrow from running code in Arrow or Parquet files (CVE-2023-47248).

A schema may name the type ``arrow.py_extension_type``, which PyArrow before 14.0.1 unpickles; ``pyarrow_hotfix`` makes
it raise. Importing that imports PyArrow, which takes half a second and 45 MB, so an import hook does it when any module
imports PyArrow. Every package of the ML side calls :func:`refuse_pickled_types` when it is imported. PyArrow of the
profile ``current`` does not need this: it never unpickles, and reads such a column as the type that stores it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from airflow_hops.core.profiles import CURRENT, own_profile

_PICKLED = "arrow.py_extension_type"


def refuse_pickled_types() -> None:
    """Makes PyArrow 10 refuse pickled types: now, or as soon as it is imported."""
    if own_profile() is CURRENT:
        return
    if "pyarrow" in sys.modules:
        _fix(sys.modules["pyarrow"])
    elif not any(isinstance(finder, _FixingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FixingFinder())


def why_refused(error: RuntimeError) -> str | None:
    """Returns why a file was refused; None for other errors."""
    if _PICKLED not in str(error):
        return None
    return (
        f"a column is of the type {_PICKLED!r}, which is Python code in pickled form and is not run (CVE-2023-47248); "
        "do not trust the file; if it is your own, write it again with one of Arrow's own types"
    )


class _FixingFinder(MetaPathFinder):
    """Finds PyArrow, and applies the fix after its import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "pyarrow" or (spec := PathFinder.find_spec(fullname, path, target)) is None:
            return None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_fix(module: ModuleType) -> None:
            execute(module)
            _fix(module)

        spec.loader.exec_module = execute_and_fix  # type: ignore[method-assign]
        return spec


def _fix(pyarrow: ModuleType) -> None:
    pickled_type = getattr(pyarrow, "PyExtensionType", None)
    if pickled_type is None or hasattr(pickled_type, "set_auto_load"):
        return  # this release refuses pickled types itself
    try:
        importlib.import_module("pyarrow_hotfix")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"PyArrow {pyarrow.__version__} runs code that files contain (CVE-2023-47248), and pyarrow_hotfix, "
            "which prevents it, is not installed; run 'airflow hops runtime create'"
        ) from error
