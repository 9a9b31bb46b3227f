"""Runs a notebook as a script: its code cells in order, in one namespace, without a kernel."""

from __future__ import annotations

import ast
import linecache
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.step.source import code_cells, has_parameters, inject_parameters, read_notebook

log = logging.getLogger(__name__)

_LEFT_OUT = ("autoreload", "config", "load_ext", "matplotlib", "reload_ext")
"""Magics that configure only how a notebook displays results."""


def run_notebook(path: Path, params: Mapping[str, object] | None = None) -> dict[str, object]:
    """Runs the code cells of a notebook as ``__main__``; returns its global variables.

    IPython's magics that only configure the display are left out, with a warning.

    Args:
        path: The ``.ipynb``.
        params: Values for the variables assigned in the cell tagged ``parameters``; ignored without such a cell.

    Raises:
        BadInput: it is not a notebook with code, or a cell does not parse or has a shell command or another magic.
    """
    from IPython.display import display

    notebook = read_notebook(path)
    if has_parameters(notebook):
        inject_parameters(notebook, params or {}, path)
    # Compiles all cells before running one, to find errors in the last one early.
    compiled = [_compile(cell.source, f"{path}, cell {number}") for number, cell in code_cells(notebook)]
    module = ModuleType("__main__")
    module.__dict__.update(__file__=str(path), display=display)
    main, sys.modules["__main__"] = sys.modules["__main__"], module  # pickle finds classes there
    try:
        for code in compiled:
            exec(code, module.__dict__)
    finally:
        sys.modules["__main__"] = main
    return module.__dict__


def _compile(source: str, name: str) -> Any:
    from IPython.core.inputtransformer2 import TransformerManager

    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        tree = ast.parse(TransformerManager().transform_cell(source), name)
        _Magics(name).visit(tree)
        return compile(ast.fix_missing_locations(tree), name, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise BadInput(f"{name} does not parse: {error}") from error


class _Magics(ast.NodeTransformer):
    """Removes or refuses the calls that IPython makes from magics."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        match _magic(node.value):
            case ("run_line_magic", magic, arguments) if magic in _LEFT_OUT:
                log.warning("%s: %%%s %s is left out: ranks display nothing", self._name, magic, arguments)
                return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match _magic(node):
            case (kind, *rest):
                signs = {"run_line_magic": "%", "run_cell_magic": "%%"}
                raise BadInput(
                    f"{self._name}: {signs.get(kind, '!')}{' '.join(rest[:2])} is IPython's, which is not "
                    "available to a notebook that runs as a script; write it in Python, or move it out of the notebook"
                )
        return self.generic_visit(node)


def _magic(node: ast.expr) -> list[str]:
    """Returns method and arguments of a call ``get_ipython().method(...)``; empty for any other expression."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=method), args=arguments
        ) if method in ("run_line_magic", "run_cell_magic", "system", "getoutput"):
            return [method, *(str(each.value) for each in arguments if isinstance(each, ast.Constant))]
    return []
