"""References in Python sources: imported modules, and files named in strings."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_MAGIC = re.compile(r"^([ \t]*)[%!?].*$", re.MULTILINE)
"""A line of IPython's syntax in a notebook's cell."""

_MODULE_FILE = re.compile(r"(\w+)(\.pyc?|(\.[\w-]+)*\.so)")
_MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(\.\*)?")
_FILE_NAME = re.compile(r"(?=.*\w)[\w.*?][\w.*? /-]{0,199}")
_BY_NAME = {"__import__", "import_module", "run_module"}
_BY_PATH = {"run_path", "spec_from_file_location"}
_JOINING = {"join", "joinpath", "with_name", "glob", "iglob"}
_SEARCHING = {"iterdir", "listdir", "scandir", "walk", "rglob", "with_suffix", "with_stem"}
_PLACE = {"__file__", "__path__", "__spec__", "getfile", "getsourcefile"}
_RESOURCES = {"importlib.resources", "importlib_resources", "pkgutil", "pkg_resources"}
"""Modules that find files by the names of packages."""
_COMPUTED = re.compile(r"[*?./ -]*[*?][*?./ -]*")
_PLACEHOLDER = re.compile(r"%[sd]|\{[^{}]*\}")
_COMMENTED_MAGIC = re.compile(r"^# [%!?](.*)$", re.MULTILINE)


@dataclass(frozen=True)
class References:
    """References of a source.

    Attributes:
        modules: Dotted names of modules; the last part may be a name in the module before it, or ``*`` for all
            modules of a package.
        files: Strings that may be paths of files, with ``*`` for computed parts.
        folders: Those of them that may be paths of folders.
        data: Dotted names of packages, and of modules in them, of which it may find files by computed names; empty for
            the folder of user code.
        anything: Whether an import's name cannot be determined.
    """

    modules: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    data: frozenset[str] = frozenset()
    anything: bool = False


def references(source: bytes | str, package: Sequence[str] = (), is_init: bool = False) -> References:
    """Returns the references of a source; those of one that does not parse are unknown, as newer Pythons may read it.

    ``package`` names the packages that the module is in; ``is_init`` says that it is the ``__init__`` of the last one.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # the user's code shows its warnings when it runs
            nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return References(anything=True)
    called = [_imported_by_call(node, package) for node in nodes if isinstance(node, ast.Call)]
    text = source if isinstance(source, str) else ""
    words = {word for magic in _COMMENTED_MAGIC.findall(text) for word in magic.split()}
    imported = {*_imported(nodes, package), *(_imported_by_init(nodes, package) if is_init else ())}
    modules = {name for name in (*imported, *called, *words) if name and _MODULE_NAME.fullmatch(name)}
    texts = {text for text in map(_pattern, nodes) if text}
    files = {name for name in (*texts, *words) if _FILE_NAME.fullmatch(name)}
    knows_its_place = not _PLACE.isdisjoint(_names(nodes))
    joined = {"*" if text is None else text for text in _joined(nodes)} if knows_its_place else set()
    folders = files & joined
    data: set[str] = set()
    if any(name == each or name.startswith(f"{each}.") for name in imported for each in _RESOURCES):
        data = {*package[:1], *modules, *filter(_MODULE_NAME.fullmatch, texts)}
    elif knows_its_place and any(map(_COMPUTED.fullmatch, joined | {text for text in texts if "/" in text})):
        data = {"".join(package[:1])}
    return References(frozenset(modules), frozenset(files), frozenset(folders), frozenset(data), None in called)


def notebook_cells(text: str) -> list[str] | None:
    """Returns the sources of a notebook's code cells, each after its tags (which mark parameters).

    IPython's lines become comments. Returns None if a cell does not parse.
    """
    try:
        cells = [_cell_source(cell) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        for cell in cells:
            ast.parse(cell)
    except (ValueError, LookupError, TypeError, SyntaxError):
        return None
    return cells


def module_name(file_name: str) -> str | None:
    """Returns the name of the module in a file of this name; None for any other file."""
    match = _MODULE_FILE.fullmatch(file_name)
    return match and match[1]


def _cell_source(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    try:
        ast.parse(source)
        left_out = ""
    except SyntaxError:
        left_out = "".join(f"# {line.group().strip()}\n" for line in _MAGIC.finditer(source))
        source = _MAGIC.sub(r"\1pass", source)
    return f"# {json.dumps(cell.get('metadata', {}).get('tags', []))}\n{left_out}{source}\n"


def _imported(nodes: Iterable[ast.AST], package: Sequence[str]) -> Iterator[str]:
    """Yields the names in import statements; that of ``from a import b`` is ``a.b``."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            for alias in node.names:
                name = [] if alias.name == "*" else [alias.name]
                yield ".".join([*above, *([node.module] if node.module else []), *name])


def _imported_by_init(nodes: Iterable[ast.AST], package: Sequence[str]) -> Iterator[str]:
    """Yields the modules of a package that its ``__init__`` may import without an import statement.

    These are the names in ``__all__``, which ``from package import *`` imports, and all modules if ``__init__`` imports
    them when they are used (``__getattr__``) or looks for them.
    """
    for node in nodes:
        names = {node.id} if isinstance(node, ast.Name) else {getattr(node, "name", "")}
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and "__all__" in _names(ast.walk(node)):
            yield from (".".join([*package, text]) for each in ast.walk(node) if (text := _pattern(each)))
        if names & {"__getattr__", "__path__"}:
            yield ".".join([*package, "*"])


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    """Returns the names of variables and attributes."""
    names = (getattr(node, "id", None) or getattr(node, "attr", None) for node in nodes)
    return {name for name in names if isinstance(name, str)}


def _imported_by_call(call: ast.Call, package: Sequence[str]) -> str | None:
    """Returns the module that a call imports; empty if it imports none, None if unknown.

    A computed name stands for all modules of its package.
    """
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if function in _BY_PATH:
        paths = (_pattern(node) or "" for argument in arguments for node in ast.walk(argument))
        return "" if any(path.endswith(".py") and _FILE_NAME.fullmatch(path) for path in paths) else None
    if function not in _BY_NAME:
        return ""
    name = (_pattern(arguments[0]) if arguments else None) or "*"
    if name.startswith("."):
        anchor = _pattern(arguments[1]) if len(arguments) > 1 else "."
        package = package if anchor == "." else anchor.split(".") if anchor else ()
        if not package:
            return None if anchor is None else ""
        # Several leading dots name a module of a parent package, or below `__name__`.
        name = f"{package[0]}.*" if name.startswith("..") else ".".join([*package, name[1:]])
    first, is_computed, _ = name.partition("*")
    parent = first.rpartition(".")[0]
    if is_computed:
        return f"{parent}.*" if parent else None
    return first


def _pattern(node: ast.AST) -> str | None:
    """Returns an expression's text, with ``*`` for computed parts; None if it may not be a text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _PLACEHOLDER.sub("*", node.value)
    if isinstance(node, ast.Name) and node.id in ("__name__", "__package__"):
        return "."
    if isinstance(node, ast.FormattedValue):
        return _pattern(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_pattern(value) or "*" for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _pattern(node.left), _pattern(node.right)
        return None if left is None and right is None else f"{left or '*'}{right or '*'}"
    return None


def _joined(nodes: Iterable[ast.AST]) -> Iterator[str | None]:
    """Yields the parts of a joined path: texts, and None for a computed name or any file of a folder."""
    for node in nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            yield _pattern(node.right)
        elif isinstance(node, ast.Call):
            function, owner = _names([node.func]), _names([getattr(node.func, "value", node.func)])
            if function & _JOINING:
                # The first argument of os.path.join() is the path itself.
                yield from map(_pattern, node.args[bool(owner & {"path", "join"}) :])
            elif function & _SEARCHING:
                yield None
