"""The English of the code: docstrings begin with a verb or the thing they name, names are nouns or verbs."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

SOURCES = pytest.mark.xdist_group("sources")
"""Tests that read all code, which one worker parses once."""
pytestmark = SOURCES
REPOSITORY = Path(__file__).resolve().parent.parent
STARTS = {"By", "Of", "That", "What", "Where", "Who"}
NAMES = {"found", "given", "kept", "look", "told"}
FILES = [
    path.relative_to(REPOSITORY).as_posix()
    for folder in ("airflow_hops", "tests")
    for path in sorted((REPOSITORY / folder).rglob("*.py"))
]


@functools.cache
def nodes(file: str) -> list[ast.AST]:
    """Returns all nodes of a file's code."""
    return list(ast.walk(ast.parse((REPOSITORY / file).read_text())))


@pytest.mark.parametrize("folder", ["airflow_hops", "tests"])
def test_docstrings_begin_with_a_verb_or_a_thing(folder: str) -> None:
    wrong = []
    for file in FILES:
        for node in nodes(file) if file.startswith(folder) else ():
            for docstring in _docstrings(node):
                words = docstring.split() or ["-"]
                if words[0].strip(",:;.") in STARTS:
                    wrong.append(f"{file}: {' '.join(words[:12])}")
    assert wrong == []


def _docstrings(node: ast.AST) -> list[str]:
    """Docstrings of a module, class or function, and of the attributes and constants in it."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    return [
        text.value.value
        for before, text in zip([None, *node.body], node.body, strict=False)
        if isinstance(before, ast.Assign | ast.AnnAssign | None)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    ]


def test_local_variables_are_named_for_what_they_hold() -> None:
    wrong = []
    for file in FILES:
        functions = [node for node in nodes(file) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for node in {node for function in functions for node in ast.walk(function)}:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id.strip("_") in NAMES:
                wrong.append(f"{file}:{node.lineno}: {node.id}")
    assert wrong == []
