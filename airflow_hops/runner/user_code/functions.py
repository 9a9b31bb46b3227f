"""Functions of user code, as far as their source says without being imported."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MethodType

from airflow_hops.core.names import suggestion
from airflow_hops.runner.arguments import BadArgument

_COMPUTED = {"*", "__getattr__", "globals", "setattr", "exec"}
"""With one of these a module may have names that its source does not tell."""


_NEWER = re.compile(r"\s*(type\b|((async\s+)?def|class)\s+\w+\s*\[)")
"""Statements that Python 3.12 brought, which lines of a file may have for the runtime environment."""
_F_STRING = re.compile(r"\b[rR]?[fF][rR]?['\"]")
"""Beginning of an f-string, whose fields may have several lines since Python 3.12."""


def function_name(function: Callable[..., object], dag_file: str | None) -> str:
    """Returns ``module:function`` of a function, under which a step imports it.

    Raises:
        BadArgument: it has no such name, or is in the DAG file, which a step cannot import without Airflow.
    """
    module, name = (str(getattr(function, key, "")) for key in ("__module__", "__qualname__"))
    code = getattr(inspect.unwrap(function), "__code__", None)
    if isinstance(function, functools.partial):
        problem = "is a functools.partial; arguments of a training are its params"
    elif isinstance(function, MethodType) or not (module and name):
        problem = "belongs to an object, which the step does not have"
    elif name.endswith("<lambda>"):
        problem = "is a lambda, which has no name"
    elif "." in name:
        problem = f"is {name}, defined within a function or class"
    elif module == "__main__" or module.startswith("unusual_prefix_") or (code and code.co_filename == dag_file):
        problem = f"is {name} of the DAG file, which steps do not import, since they have no Airflow"
    elif getattr(sys.modules.get(module), name, None) is not function:
        problem = f"is not what {module} has as {name}; a decorator needs functools.wraps"
    else:
        return f"{module}:{name}"
    raise BadArgument(
        f"{getattr(function, '__name__', function)!s} {problem}. Expected a function that is defined with 'def' at the "
        "top of a module beside the DAG file, or its name, 'module:function'"
    )


def missing_file(name: str, folders: Sequence[Path]) -> str | None:
    """Returns the fault of the name of a file of user code; None if there is none, or it is unknown."""
    places = [*folders, *map(Path, sys.path)]
    if any((folder / name).is_file() for folder in places) or Path(name).is_absolute():
        return None
    known = [str(file.relative_to(folder)) for folder in folders[:1] for file in (folder / name).parent.glob("*.*")]
    return f"there is no such file in {folders[0]}{suggestion(name, known)}"


def problem_of(function: str, count: int, folders: Sequence[Path], named: Collection[str] | None = ()) -> str | None:
    """Returns the fault of a ``module:function``; None if there is none.

    A module that is in none of the folders is taken for one of an installed library, unless one of the folders has a
    similar name. What a module computes is not judged.

    Args:
        function: The name.
        count: How many positional arguments it is called with.
        folders: Where its module may be.
        named: Names of arguments that it gets if it takes them; None if they are not known.
    """
    module, _, name = function.partition(":")
    places = [*folders, *_roots(folders)]
    files = (file for place in places for file in _files_of(place, module))
    if (file := next((file for file in files if file.is_file()), None)) is None:
        return _missing_module(module, places)
    try:
        bound = list(_bindings(ast.parse(file.read_bytes()).body))
    except SyntaxError as error:
        # The runtime environment may have a newer Python than Airflow.
        text = error.text or ""
        is_newer = error.msg.startswith("unterminated string") and _F_STRING.search(text)
        return (
            None
            if is_newer or error.msg.startswith("f-string") or _NEWER.match(text)
            else f"{file}:{error.lineno}: {error.msg}"
        )
    except (OSError, ValueError):
        return None
    bindings = dict(bound)
    if not _COMPUTED.isdisjoint(bindings):
        return None
    if name not in bindings:
        return f"{file} has no function {name!r}{suggestion(name, bindings)}"
    node = bindings[name]
    if isinstance(node, ast.AsyncFunctionDef):
        return f"{file}:{node.lineno}: {name} is async; expected a function that is defined with 'def'"
    if isinstance(node, ast.Constant) and [each for each, _ in bound].count(name) == 1:
        return f"{file}:{node.lineno}: {name} is {node.value!r}; expected a function"
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return None
    arguments = node.args
    positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    required = positional[count : len(positional) - len(arguments.defaults)]
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    required += [each.arg for each, default in pairs if default is None]
    if (named is None or set(required) <= set(named)) and (len(positional) >= count or arguments.vararg is not None):
        return None
    takes = ast.unparse(arguments) or "no arguments"
    return f"{file}:{node.lineno}: {name} takes ({takes}), but is called with {count} argument{'s' * (count > 1)}"


def _roots(folders: Iterable[Path]) -> list[Path]:
    """Returns the folders above, from which Airflow imports: a bundle's, which is on a step's path, too."""
    paths = [Path(path) for path in sys.path if path]
    return [path for path in paths if any(folder != path and folder.is_relative_to(path) for folder in folders)]


def _files_of(folder: Path, module: str) -> tuple[Path, Path]:
    place = folder.joinpath(*module.split("."))
    return place / "__init__.py", place.with_name(f"{place.name}.py")


def _missing_module(module: str, places: Sequence[Path]) -> str | None:
    """Returns the fault of the name of a module that has no file in the places."""
    package, _, name = module.rpartition(".")
    for place in places:
        folder = place.joinpath(*package.split("."))
        if package and (_modules_in(folder) or any(file.is_file() for file in _files_of(place, package))):
            if folder.joinpath(name).is_dir():
                return f"{folder / name} is a folder; the function is in a module of it"
            return f"there is no module {name!r} in {folder}{suggestion(name, _modules_in(folder))}"
    top = module.partition(".")[0]
    similar = get_close_matches(top, _modules_in(places[0]), cutoff=0.8)
    if not similar or importlib.machinery.PathFinder.find_spec(top) is not None:
        return None
    return f"there is no module {top!r} in {places[0]}{suggestion(top, similar)}"


def _modules_in(folder: Path) -> list[str]:
    """Returns names of modules; folders without Python, such as those of data, are none."""
    files = folder.iterdir() if folder.is_dir() else ()
    return [file.stem for file in files if file.suffix == ".py" or (file.name.isidentifier() and _has_python(file))]


def _has_python(folder: Path) -> bool:
    return any(folder.glob("*.py")) or any(folder.glob("*/*.py"))


def _bindings(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Yields names that statements of a module bind, each with what binds it."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name.partition(".")[0], node) for alias in node.names)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            yield from ((each.id, node.value) for each in node.targets if isinstance(each, ast.Name))
        else:
            yield from (
                (each.id, each)
                for each in ast.walk(node)
                if isinstance(each, ast.Name) and (isinstance(each.ctx, ast.Store) or each.id in _COMPUTED)
            )
            for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                for each in getattr(node, block, ()):
                    yield from _bindings([each] if isinstance(each, ast.stmt) else each.body)
