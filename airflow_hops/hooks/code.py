"""Fingerprints of code: what a step's cache key knows of the package and the user's own modules."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import airflow_hops
from airflow_hops.contract.protocol import StepSpec

ML_SIDE = (
    "artifacts.py",
    "contract",
    "data",
    "jobs.py",
    "processes",
    "schema_history.py",
    "server_address.py",
    "shared_places.py",
    "store",
    "runtime",
    "hops",
    "serving",
    "serving_api",
)
"""The modules and folders of this package that run in a step."""


@cache
def package_fingerprint() -> str:
    """SHA-256 (hex) of the ML side's sources."""
    package = Path(airflow_hops.__file__).parent
    return _fingerprint((package / name for name in ML_SIDE), package)


def user_code_fingerprint(spec: StepSpec) -> str:
    """SHA-256 (hex) of the user code that a spec names as ``module:function``, and of all that it imports.

    What the shipped source of a function imports counts as well. Of a package all files count, since its modules may
    import each other and read what lies beside them. Imports are followed as far as they lead to the spec's code paths;
    a module that is imported by a computed name is not seen.
    """
    waiting = {name.partition(".")[0] for name in _module_names([spec.entry, spec.params])}
    looked_at = {airflow_hops.__name__}  # package_fingerprint() has that
    found: list[str] = []
    while tops := waiting - looked_at:
        top = min(tops)
        looked_at.add(top)
        for folder in map(Path, spec.code_paths):
            for path in (folder / top, folder / f"{top}.py"):
                if path.exists():
                    found.append(_fingerprint([path], folder, "*"))
                    waiting |= _imported(path)
    return hashlib.sha256("".join(found).encode()).hexdigest()


def _imported(path: Path) -> set[str]:
    """Top-level names of the modules that a module, or any of a package, imports."""
    return {name for source in _files(path, "*.py") for name in _imports(source.read_bytes())}


def _imports(source: bytes | str) -> Iterable[str]:
    """Top-level names of the modules that a source imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # the step says so, if it imports it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _module_names(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        module, separator, function = value.partition(":")
        if separator and function.isidentifier() and all(part.isidentifier() for part in module.split(".")):
            yield module
    elif isinstance(value, dict):
        if {"source", "function", "wants_context"} <= value.keys():
            yield from _imports(value["source"])
        for item in value.values():
            yield from _module_names(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _module_names(item)


def _fingerprint(paths: Iterable[Path], root: Path, pattern: str = "*.py") -> str:
    digest = hashlib.sha256()
    for path in paths:
        for source in _files(path, pattern):
            digest.update(f"{source.relative_to(root)}\0".encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _files(path: Path, pattern: str) -> list[Path]:
    """A file, or the files below a folder, less bytecode and what is hidden."""
    if path.is_file():
        return [path]
    return [
        found
        for found in sorted(path.rglob(pattern))
        if found.is_file()
        and not any(part.startswith(".") or part == "__pycache__" for part in found.relative_to(path).parts)
    ]
