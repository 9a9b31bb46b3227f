"""Entries of steps in tests and benchmarks, which are strings: each names a function of a module that there is."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ENTRY = re.compile(r"airflow_hops(?:\.\w+)+:\w+")
REMOVED = {"airflow_hops.ml.of_an_older_version:run"}
"""Entries of records that a test reads only, of functions that no longer exist."""


@pytest.mark.parametrize("folder", ["benchmarks", "dags", "tests"])
def test_entries_name_functions_that_exist(folder: str) -> None:
    wrong = []
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Constant(str(text)) if ENTRY.fullmatch(text) and text not in REMOVED:
                    module, _, name = text.partition(":")
                    if name not in names(module):
                        wrong.append(f"{path.relative_to(REPOSITORY)}:{node.lineno}: {text}")
    assert wrong == []


@pytest.mark.parametrize("module", ["airflow_hops.ml.statistics", "airflow_hops.ml.moved"])
def test_functions_that_moved_are_noticed(module: str) -> None:
    assert "run" not in names(module) and "run" in names("airflow_hops.ml.statistics.stage")


@cache
def names(module: str) -> set[str]:
    """Returns the names that a module's source defines or imports; none if there is no such module."""
    place = REPOSITORY / module.replace(".", "/")
    result: set[str] = set()
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        for node in ast.parse(path.read_text()).body if path.exists() else ():
            match node:
                case ast.FunctionDef() | ast.ClassDef():
                    result.add(node.name)
                case ast.Import() | ast.ImportFrom():
                    result |= {alias.asname or alias.name for alias in node.names}
    return result
