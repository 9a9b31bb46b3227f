"""Finds what pages and docstrings name and does not exist: files, targets of make, markers, options, dotted names."""

from __future__ import annotations

import ast
import configparser
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from step_runner import REPOSITORY

PACKAGE = REPOSITORY / "airflow_hops"
PAGES = [
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    *sorted((REPOSITORY / "contribute").rglob("*.md")),
    *(REPOSITORY / name for name in ("AGENTS.md", "CONTRIBUTING.md", "README.md", "SKILL.md", "ui/README.md")),
]
MADE = ("airflow_hops/web/static", "docs/_build", "ui/node_modules", "calibrate")
"""Parts of paths that only a build makes, and the stage that CONTRIBUTING.md adds."""
_FOLDERS = "|".join(path.name for path in REPOSITORY.iterdir() if path.is_dir() and path.name[0] not in "._")
_CODE = re.compile(r"`+([^`\n]+)`+")
_PATH = re.compile(rf"(?<![\w/.:@-])(?:\.\./)*((?:{_FOLDERS}|\.github|\.ci)/[\w./<>*-]*[\w/>*])")
_TARGET = re.compile(r"^(?:\w+=\S+ )*make ([a-z][a-z-]*)\b")
_DOTTED = re.compile(r"(?<![\w./-])~?(airflow_hops(?:\.\w+)+)(?![\w/-])")


def missing_names() -> list[str]:
    """Returns ``file: name`` of everything that does not exist."""
    texts = {page: page.read_text() for page in PAGES}
    results = [
        f"{page.relative_to(REPOSITORY)}: {name}" for page, text in texts.items() for name in missing_on(page, text)
    ]
    for path in PACKAGE.rglob("*.py"):
        for docstring in _docstrings(path):
            names = [*_missing_files(docstring, PACKAGE), *_missing_dotted(docstring)]
            results += [f"{path.relative_to(REPOSITORY)}: {name}" for name in names]
    return results


def missing_on(page: Path, text: str) -> Iterator[str]:
    """Yields what a page names and does not exist."""
    yield from _missing_links(page, text)
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for code in _CODE.findall(prose):
        yield from _missing_files(code, page.parent)
        yield from (f"make {name}" for name in _TARGET.findall(code) if name not in _targets())
        yield from _missing_dotted(code)
        if page.name in ("architecture.md", "CONTRIBUTING.md", "development.md"):
            yield from (name for name in re.findall(r"^([a-z]\w*_\w+)(?:\(.*\))?$", code) if name not in _sources())
            yield from (name for name in re.findall(r"(?<!\S)--[a-z][a-z-]+", code) if name not in _sources())
        if page.is_relative_to(REPOSITORY / "contribute"):
            names = re.findall(r"(?<![\w./-])((?:[a-z]\w+/)*\w+\.py|(?:[a-z]\w+/){2,})(?=$|[\s,;:])", code)
            yield from (name for name in names if not any(f"/{name}" in path for path in _files()))
        if page.is_relative_to(REPOSITORY / "contribute") or page.parent == REPOSITORY:
            yield from (name for name in re.findall(r"pytest.* -m .?(?:not )?(\w+)", code) if name not in _markers())
    for table in re.findall(r"^\| marker \|.*\n\|[-| ]*\n((?:\|.*\n)*)", text, re.MULTILINE):
        yield from (name for name in re.findall(r"^\| `(\w+)", table, re.MULTILINE) if name not in _markers())


def _missing_links(page: Path, text: str) -> Iterator[str]:
    for target in re.findall(r"\]\((?!\w+:)([^)#\s]+)", text):
        if not (page.parent / target).exists() and not any(part in target for part in MADE):
            yield target


def _missing_files(text: str, beside: Path) -> Iterator[str]:
    for name in _PATH.findall(text):
        pattern = re.sub(r"<\w+>", "*", name).strip("/")
        if (
            not any(part in name for part in MADE)
            and not any(REPOSITORY.glob(pattern))
            and not any(beside.glob(pattern))
        ):
            yield name


def _missing_dotted(text: str) -> Iterator[str]:
    yield from (name for name in _DOTTED.findall(text) if not _exists(name) and name not in _groups())


def _exists(name: str) -> bool:
    """Whether a module has what a dotted name says, by its source: the ML side cannot be imported here."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = REPOSITORY.joinpath(*parts[:length])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.exists() or (path.is_dir() and length == len(parts)):
            return not parts[length:] or parts[length] in _names(file)
    return False


@functools.cache
def _names(file: Path) -> set[str]:
    results = set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                results.add(node.name)
            case ast.Name(ctx=ast.Store()):
                results.add(node.id)
            case ast.alias():
                results.add((node.asname or node.name).partition(".")[0])
            case ast.Constant(value=str(text)):  # names that are imported when they are asked for
                results.add(text)
    return results


def _docstrings(path: Path) -> list[str]:
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.walk(ast.parse(path.read_text()))
    return [text for node in tree if isinstance(node, nodes) and (text := ast.get_docstring(node, clean=False))]


@functools.cache
def _files() -> list[str]:
    folders = ("airflow_hops", "benchmarks", "contribute", "dags", "demo", "docs", "scripts", "tests", "ui/src")
    return [f"/{path.relative_to(REPOSITORY)}" for folder in folders for path in (REPOSITORY / folder).rglob("*.*")]


@functools.cache
def _groups() -> set[str]:
    """Groups of entry points."""
    results = set()
    for file in PACKAGE.rglob("entry_points.ini"):
        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        parser.read_string(file.read_text())
        results |= {*parser.sections()}
    return results | set(re.findall(r'"(airflow_hops\.\w+)"', (PACKAGE / "core" / "extensions.py").read_text()))


@functools.cache
def _targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))


@functools.cache
def _markers() -> set[str]:
    options = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    return {re.match(r"\w+", line)[0] for line in options["markers"]}  # type: ignore[index]


@functools.cache
def _sources() -> str:
    """All sources, in which options and functions are defined."""
    files = [
        *(
            path
            for folder in ("airflow_hops", "benchmarks", "dags", "demo", "scripts", "tests")
            for path in (REPOSITORY / folder).rglob("*.py")
        )
    ]
    return "".join(path.read_text() for path in [*files, REPOSITORY / "Makefile", *(REPOSITORY / ".ci").iterdir()])
