"""Reads notebooks and injects parameters into them."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import nbformat
from nbformat import from_dict
from nbformat.v4 import new_code_cell, upgrade

from airflow_hops.core.errors import BadInput, UnreadableFile
from airflow_hops.core.redaction import masked

PARAMETERS_TAG = "parameters"
INJECTED_TAG = "injected-parameters"
"""Tags of cells, by papermill's convention (https://papermill.readthedocs.io/en/latest/usage-parameterize.html)."""


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """Reads a Python notebook; older formats are converted to 4.5, in which cells have IDs.

    Raises:
        BadInput: the file is not a notebook, is in another language, or has no code.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
        notebook = upgrade(notebook)
        nbformat.validate(notebook)
        cells = list(code_cells(notebook))
    except Exception as error:  # nbformat raises many types for broken files
        reason = str(error).partition("\n")[0][:300]
        raise UnreadableFile(
            path,
            f": not a Jupyter notebook ({type(error).__name__}: {reason}); expected nbformat 4, as Jupyter saves it",
        ) from error
    language = notebook.metadata.get("kernelspec", {}).get("language") or "python"  # Hopsworks leaves it empty
    if language != "python":
        raise BadInput(f"{path}: metadata.kernelspec.language is {language!r}; expected 'python'")
    if not cells:
        raise BadInput(f"{path}: none of its {len(notebook.cells)} cells has code; expected a code cell at least")
    return notebook


def code_cells(notebook: nbformat.NotebookNode) -> Iterator[tuple[int, nbformat.NotebookNode]]:
    """Yields the cells with code, numbered from 1 as Jupyter does if all run once."""
    yield from enumerate((c for c in notebook.cells if c.cell_type == "code" and c.source.strip()), start=1)


def has_parameters(notebook: nbformat.NotebookNode) -> bool:
    """Returns whether a cell is tagged ``parameters``."""
    return _position(notebook, PARAMETERS_TAG) is not None


def inject_parameters(notebook: nbformat.NotebookNode, params: Mapping[str, object], path: Path) -> None:
    """Adds a cell that sets parameters: after the cell tagged ``parameters``, or as the first cell.

    Args:
        notebook: The notebook, which is changed.
        params: JSON values by name.
        path: Path of its file, for messages.

    Raises:
        BadInput: a name is not a Python variable, the cell tagged ``parameters`` does not assign it, or another cell
            assigns it before any uses it.
    """
    for name in params:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise BadInput(f"{path}: parameter {name!r}: expected the name of a Python variable")
    position = _position(notebook, PARAMETERS_TAG)
    if position is not None:
        statements = _parsed(notebook.cells[position].source).body
        known = {name.id for each in statements for name in _names(each) if isinstance(name.ctx, ast.Store)}
        for name in params:
            if name not in known:
                raise BadInput(
                    f"{path}: parameter {name!r} is not assigned in the cell tagged {PARAMETERS_TAG!r}, which assigns "
                    f"{', '.join(sorted(known)) or 'nothing'}; add it there with its default, or leave it out"
                )
    earlier = _position(notebook, INJECTED_TAG)  # if papermill or a step executed the notebook
    if earlier is not None:
        del notebook.cells[earlier]
    _check_effective(notebook, params, path)
    if not params:
        return
    cell = new_code_cell(_assignments(params), metadata={"tags": [INJECTED_TAG]})
    position = _position(notebook, PARAMETERS_TAG)
    notebook.cells.insert(0 if position is None else position + 1, cell)


def mask_secrets(notebook: nbformat.NotebookNode, params: Mapping[str, object]) -> None:
    """Masks credentials in the parameters and outputs of an executed notebook."""
    for cell in notebook.cells:
        if INJECTED_TAG in cell.metadata.get("tags", []):
            cell.source = _assignments(masked(params))
        if cell.cell_type == "code":
            cell.outputs = [from_dict(masked(output)) for output in cell.outputs]


def _assignments(params: Mapping[str, object]) -> str:
    return "\n".join(["# Parameters", *(f"{name} = {_literal(value)}" for name, value in params.items())])


def _literal(value: object) -> str:
    """Returns the Python source of a JSON value."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float({str(value)!r})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)


def _position(notebook: nbformat.NotebookNode, tag: str) -> int | None:
    tagged = (i for i, cell in enumerate(notebook.cells) if tag in cell.metadata.get("tags", []))
    return next((i for i in tagged if notebook.cells[i].cell_type == "code"), None)


def _parsed(source: str) -> ast.Module:
    """Parses a cell's code; empty if it does not parse, since it fails when it runs."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        return ast.parse(str(TransformerManager().transform_cell(source)))
    except SyntaxError:
        return ast.Module([], [])


def _check_effective(notebook: nbformat.NotebookNode, params: Collection[str], path: Path) -> None:
    """Raises BadInput if a cell after the one tagged ``parameters`` assigns a parameter before any uses it."""
    unused, is_tagged = set(params), has_parameters(notebook)
    is_after = not is_tagged
    for number, cell in code_cells(notebook):
        for used, assigned in _steps(_parsed(cell.source).body) if is_after else ():
            unused -= used
            for name in sorted(unused & assigned):
                advice = "delete that assignment" if is_tagged else f"tag that cell {PARAMETERS_TAG!r}"
                raise BadInput(
                    f"{path}: cell {number} assigns {name!r}, so that the parameter of this name has no effect; "
                    f"{advice}, or leave the parameter out"
                )
        is_after = is_after or PARAMETERS_TAG in cell.metadata.get("tags", [])


def _steps(statements: Iterable[ast.stmt]) -> Iterator[tuple[set[str], set[str]]]:
    """Yields the global variables that statements use, and then assign unconditionally, in the order of execution."""
    for each in statements:
        body: list[ast.stmt] = []
        parts: list[ast.AST] = [each]
        assigned: set[str] = set()
        if isinstance(each, ast.With | ast.AsyncWith):
            parts, body = [*each.items], each.body
        elif isinstance(each, ast.For | ast.AsyncFor):
            parts, body = [each.iter, each.target], each.body
        elif isinstance(each, ast.Try):
            parts, body = [], [*each.body, *each.finalbody]
        elif isinstance(each, ast.Import | ast.ImportFrom):
            assigned = {alias.asname or alias.name.partition(".")[0] for alias in each.names}
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            assigned = {each.name}
        names = [name for part in parts for name in _names(part)]
        stored = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        used = {name.id for name in names if isinstance(name.ctx, ast.Load)}
        if isinstance(each, ast.AugAssign):
            used |= stored
        elif not isinstance(each, ast.If | ast.While | ast.Match) and getattr(each, "value", each) is not None:
            assigned |= stored
        yield used, assigned
        yield from _steps(body)


def _names(statement: ast.AST) -> Iterator[ast.Name]:
    """Yields the global variables in a statement, except those in functions and classes that it defines."""
    left = [statement]
    while left:
        node = left.pop()
        if isinstance(node, ast.Name):
            yield node
        if isinstance(node, ast.comprehension):
            left += [node.iter, *node.ifs]
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            left += ast.iter_child_nodes(node)
