"""The English of the code: docstrings begin with a verb or the thing they name, names are nouns or verbs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
STARTS = {"By", "Of", "That", "What", "Where", "Who"}
NAMES = {"at", "before", "found", "given", "kept", "look", "of", "said", "told"}


@pytest.mark.parametrize("folder", ["airflow_hops", "tests"])
def test_docstrings_begin_with_a_verb_or_a_thing_and_variables_are_named_for_what_they_hold(folder: str) -> None:
    wrong = []
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        file = path.relative_to(REPOSITORY).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            wrong += [f"{file}: {' '.join(words[:12])}" for words in _docstrings(node) if words[0] in STARTS]
            wrong += [f"{file}:{line}: {name}" for line, name in _variables(node) if name in NAMES]
    assert wrong == []


def _docstrings(node: ast.AST) -> Iterator[list[str]]:
    """The words of the docstrings of a module, class or function, and of the attributes and constants in it."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        for assigned, text in zip([None, *node.body], node.body, strict=False):
            match assigned, text:
                case ((ast.Assign() | ast.AnnAssign() | None), ast.Expr(ast.Constant(str(docstring)))):
                    first, *others = docstring.split() or ["-"]
                    yield [first.strip(",:;."), *others]


def _variables(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines and names of a function's local variables."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                yield each.lineno, each.id.strip("_")
