"""Functions of user code, as far as their source says without being imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from airflow_hops.core.contract.names import suggestion

_COMPUTED = {"*", "__getattr__", "globals", "setattr", "exec"}
"""With one of these a module may have names that its source does not tell."""


def problem_of(function: str, count: int, folders: Iterable[Path], named: Collection[str] = ()) -> str | None:
    """Returns what is wrong with a ``module:function``; None if nothing is.

    A module that is in none of the folders, or whose names its source does not tell, is not judged.

    Args:
        function: The name.
        count: How many positional arguments it is called with.
        folders: Where its module may be.
        named: Names of arguments that it gets if it takes them.
    """
    module, _, name = function.partition(":")
    places = (folder.joinpath(*module.split(".")) for folder in folders)
    files = (file for place in places for file in (place / "__init__.py", place.with_suffix(".py")))
    if (file := next((file for file in files if file.is_file()), None)) is None:
        return None
    try:
        bindings = dict(_bindings(ast.parse(file.read_bytes()).body))
    except SyntaxError as error:
        # The runtime environment may have a newer Python than Airflow.
        return f"{file}:{error.lineno}: {error.msg}" if sys.version_info >= (3, 12) else None
    except (OSError, ValueError):
        return None
    if not _COMPUTED.isdisjoint(bindings):
        return None
    if name not in bindings:
        return f"{file} has no function {name!r}{suggestion(name, bindings)}"
    node = bindings[name]
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return None
    arguments = node.args
    positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    required = positional[count : len(positional) - len(arguments.defaults)]
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    required += [each.arg for each, default in pairs if default is None]
    if set(required) <= set(named) and (len(positional) >= count or arguments.vararg is not None):
        return None
    takes = ast.unparse(arguments) or "no arguments"
    return f"{file}:{node.lineno}: {name} takes ({takes}), but is called with {count} argument{'s' * (count > 1)}"


def _bindings(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Yields names that statements of a module bind, each with what binds it."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name.partition(".")[0], node) for alias in node.names)
        else:
            yield from (
                (each.id, each)
                for each in ast.walk(node)
                if isinstance(each, ast.Name) and (isinstance(each.ctx, ast.Store) or each.id in _COMPUTED)
            )
            for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                for each in getattr(node, block, ()):
                    yield from _bindings([each] if isinstance(each, ast.stmt) else each.body)
