"""The documentation's snippets.

A snippet below the line ``<!-- fragment -->`` is a part of something: it is only compiled. Those of the tutorial are
run in order by ``test_tutorial.py``.
"""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import airflow_hops
import airflow_hops.extensions

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [
    *sorted({*(REPOSITORY / "docs").rglob("*.md")} - {REPOSITORY / "docs" / "start" / "tutorial.md"}),
    *sorted((REPOSITORY / "contribute").rglob("*.md")),
    *sorted(REPOSITORY.glob("*/README.md")),
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
]
ML_SIDE = re.compile(r"airflow_hops\.(hops|ml|serving|core\.serving_api)\b")
"""Modules of the ML side."""
ML_IMPORTS = re.compile(
    r"^(?:from|import) (?:airflow_hops\.(?:serving|core\.serving_api)"
    r"|airflow_hops\.extensions\.(?:notebooks import pipeline|frameworks import (?:scikit_learn|Graph)|row_skew)"
    r"|airflow_hops\.extensions\.hosts|keras|tensorflow|horovod|pyarrow)\b",
    re.MULTILINE,
)
BLOCK = re.compile(r"^(<!-- fragment -->\n)?( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


COMMAND = re.compile(r"^\$ (.*(?:\n {4}.*)*)$", re.MULTILINE)
"""A command of a console, with its further lines."""


@dataclass(frozen=True)
class Snippet:
    name: str
    language: str
    source: str
    fragment: bool


def is_of_ml_side(source: str) -> bool:
    """Returns whether a snippet imports what only the runtime environment has."""
    names = {
        name: module
        for package in (airflow_hops, airflow_hops.extensions)
        for module, names in package._MODULES.items()
        for name in names.split()
    }
    imported = re.findall(r"^from airflow_hops(?:\.extensions)? import (\([^)]*\)|.*)", source, re.MULTILINE)
    modules = [names.get(name, "") for name in re.findall(r"\w+", " ".join(imported))]
    return any(map(ML_SIDE.match, modules)) or ML_IMPORTS.search(source) is not None


def read_snippets() -> Iterator[Snippet]:
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            name = f"{page.relative_to(REPOSITORY)}:{line}"
            yield Snippet(name, match[3], textwrap.dedent(match[4]), bool(match[1]))


SNIPPETS = list(read_snippets())


def those(*languages: str, ml_side: bool | None = None) -> Any:
    """A parameter ``snippet`` of the whole snippets of some languages."""
    snippets = [snippet for snippet in SNIPPETS if snippet.language in languages and not snippet.fragment]
    if ml_side is not None:
        snippets = [snippet for snippet in snippets if is_of_ml_side(snippet.source) == ml_side]
    return pytest.mark.parametrize("snippet", snippets, ids=lambda snippet: snippet.name)


def extension_modules() -> list[ModuleType]:
    """Modules of the extensions that have public names."""
    names = [module.name for module in pkgutil.iter_modules(airflow_hops.extensions.__path__)]
    modules = [importlib.import_module(f"airflow_hops.extensions.{name}") for name in names]
    return [module for module in modules if hasattr(module, "__all__")]


def operator_modules() -> list[ModuleType]:
    """Modules that DAG authors import: of the trunk, and of each extension that has operators."""
    return [importlib.import_module("airflow_hops.operators"), *extension_modules()]


def public_names() -> dict[str, str]:
    """Returns the names that DAG authors and user code import, with their packages: of the trunk, and extensions."""
    modules: list[Any] = [airflow_hops, *extension_modules()]
    return {name: module.__name__ for module in reversed(modules) for name in module.__all__}


def examples_of(ml_side: bool) -> Iterator[doctest.DocTest]:
    """Yields the examples in docstrings of public names."""
    for name, package in sorted(public_names().items()):
        try:
            thing = getattr(importlib.import_module(package), name)
        except ImportError:  # it is of the other side
            continue
        if (".ml." in getattr(thing, "__module__", "")) == ml_side:
            yield from (
                example for example in doctest.DocTestFinder(recurse=False).find(thing, name) if example.examples
            )


def examples(ml_side: bool) -> Any:
    """A parameter ``example`` of the examples in docstrings."""
    return pytest.mark.parametrize("example", [*examples_of(ml_side)], ids=lambda example: example.name)


def run_example(example: doctest.DocTest) -> None:
    """Runs an example. Raises AssertionError if it prints something else than it says."""
    printed: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=printed.append)
    assert not printed, "".join(printed)
