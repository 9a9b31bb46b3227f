"""Rules of the sources that no linter has: their English, entries of steps in strings, comments on libraries."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache

import pytest
from step_runner import REPOSITORY

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


ENTRY = re.compile(r"airflow_hops(?:\.\w+)+:\w+")
REMOVED = {"airflow_hops.ml.of_an_older_version:run"}
"""Entries of records that a test reads only, of functions that no longer exist."""


@pytest.mark.parametrize("folder", ["benchmarks", "dags", "tests"])
def test_entries_name_functions_that_exist(folder: str) -> None:
    wrong = []
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Constant(str(text)) if ENTRY.fullmatch(text) and text not in REMOVED:
                    module, _, name = text.partition(":")
                    if name not in names(module):
                        wrong.append(f"{path.relative_to(REPOSITORY)}:{node.lineno}: {text}")
    assert wrong == []


@pytest.mark.parametrize("module", ["airflow_hops.ml.statistics", "airflow_hops.ml.moved"])
def test_functions_that_moved_are_noticed(module: str) -> None:
    assert "run" not in names(module) and "run" in names("airflow_hops.ml.statistics.stage")


def test_a_name_of_a_module_has_one_value() -> None:
    again = []
    for path in sorted((REPOSITORY / "airflow_hops").rglob("*.py")):
        seen: set[str] = set()
        for node in ast.parse(path.read_text()).body:
            match node:
                case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                    again += [f"{path.relative_to(REPOSITORY)}:{node.lineno}: {name}"] if name in seen else []
                    seen.add(name)
    assert again == []


@cache
def names(module: str) -> set[str]:
    """Returns the names that a module's source defines or imports; none if there is no such module."""
    place = REPOSITORY / module.replace(".", "/")
    result: set[str] = set()
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        for node in ast.parse(path.read_text()).body if path.exists() else ():
            match node:
                case ast.FunctionDef() | ast.ClassDef():
                    result.add(node.name)
                case ast.Import() | ast.ImportFrom():
                    result |= {alias.asname or alias.name for alias in node.names}
    return result


PACKAGES = {
    "airflow": "apache-airflow",
    "beam": "apache-beam",
    "spark": "pyspark",
    "tfdv": "tensorflow-data-validation",
}
"""Packages of libraries that have another name."""
COMMENT = re.compile(r"# ([A-Za-z][\w-]+) (\d+\.\d+)(?: \(([^()]+)\))?: ")


def versions() -> dict[str, set[str]]:
    """Returns the minor versions of each package that the pins and the pages name."""
    pinned = defaultdict(set)
    for path in [*(REPOSITORY / "requirements").glob("*.txt"), *(REPOSITORY / "docs").rglob("*.md")]:
        for name, version in re.findall(r"([\w-]+)(?:\[[\w,]+\])?==(\d+\.\d+)", path.read_text()):
            pinned[name.lower()].add(version)
    return pinned


def test_comments_on_libraries_name_versions_that_are_used() -> None:
    pinned, count, stale = versions(), 0, []
    for path in sorted((REPOSITORY / "airflow_hops").rglob("*.py")):
        for name, version, issue in COMMENT.findall(path.read_text()):
            count += 1
            package = PACKAGES.get(name.lower(), name.lower())
            if version not in pinned[package] or (issue and not re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|[A-Z]+-\d+", issue)):
                stale.append(f"{path.relative_to(REPOSITORY)}: {name} {version} {issue}, pinned: {pinned[package]}")
    assert stale == [], "still needed with the pinned version? then name it, otherwise remove what the comment explains"
    assert count > 80


def test_comments_begin_with_no_library_without_its_version() -> None:
    names = "TensorFlow|Keras|Horovod|PyArrow|Arrow|DuckDB|Spark|TFDV|MLflow|NumPy|gRPC|Airflow|onnxruntime|libtorrent"
    verbs = "ignores|refuses|would|does not|cannot|accepts only|waits|drops|ends|lacks|has no|takes|reads|needs|makes"
    pattern = re.compile(rf"# (?:By default )?({names})(?:'s [\w ]+)? ({verbs})\b.*")
    matches = {
        f"{path.relative_to(REPOSITORY)}: {match[0]}"
        for path in (REPOSITORY / "airflow_hops").rglob("*.py")
        for match in pattern.finditer(path.read_text())
    }
    assert matches == set(), "expected '# Library 1.2: …', with the version that is pinned"


def test_modules_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by these names where their folder is not a package."""
    paths = [path for path in (REPOSITORY / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    names = Counter(((REPOSITORY / "tests" / "ml") in path.parents, path.name) for path in paths)
    assert [name for (_, name), count in names.items() if count > 1] == []
