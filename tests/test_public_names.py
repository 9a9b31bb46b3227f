"""Public names: imported when they are used, listed in the reference, and all that documents import."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from named_in_docs import _exists
from step_runner import REPOSITORY

import airflow_hops
import airflow_hops.extensions
import airflow_hops.hops
import airflow_hops.operators
import airflow_hops.retraining

DEEPER = {
    "airflow_hops.core.serving_api": "config files of a model server without Airflow",
    "airflow_hops.testing.stages": "contract tests, which need pytest",
}
"""Modules below the public ones from which documents import, with the reasons."""
OF_THE_DEMO = {
    "airflow_hops.core.processes.programs": "it starts services",
    "airflow_hops.core.processes.cpu_time": "it waits for services that a busy machine slows down",
    "airflow_hops.core.store": "it reads and removes artifacts",
    "airflow_hops.core.schema.history": "it asks for a new schema, as the page does",
    "airflow_hops.runner.runtime": "it starts services",
    "airflow_hops.runner.launchers.warm": "it starts services",
    "airflow_hops.operators.validation": "it presses a button of the page",
}


OF_MODULES = {"Champion", "get_gpus", "get_num_gpus", "scikit_learn"}
"""A class that only a context has, functions of a module that is public, and a module whose function is described."""


def documents() -> list[Path]:
    """Returns all that users read or copy."""
    return [
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / name for name in ("README.md", "SKILL.md")),
        *(path for folder in ("dags", "demo") for path in (REPOSITORY / folder).rglob("*.py")),
        *(REPOSITORY / "airflow_hops" / "extensions" / "projects").rglob("*.template"),
    ]


def test_documents_import_public_names_only() -> None:
    deeper: dict[str, list[str]] = {}
    for path in documents():
        for module in re.findall(r"^ *(?:from|import) (airflow_hops[\w.]*)", path.read_text(), re.MULTILINE):
            if not re.fullmatch(r"airflow_hops(\.extensions(\.\w+)?)?", module):
                deeper.setdefault(module, []).append(str(path.relative_to(REPOSITORY)))
    expected = DEEPER | OF_THE_DEMO
    assert {module: paths for module, paths in deeper.items() if module not in expected} == {}
    assert sorted(deeper) == sorted(expected)
    assert {path for module in OF_THE_DEMO for path in deeper[module] if not path.startswith("demo/")} == set()


def listed_on(page: Path, text: str = "") -> set[str]:
    """Returns the names that a page of the reference describes, but for bases, which have dots, and decorators.

    Args:
        page: Page.
        text: Section of the page; empty for all of it.
    """
    names, package = set(), ""
    for directive, name, members in re.findall(
        r"^\.\. (currentmodule|auto\w+):: ([\w.]+).*\n(   :members:)?", text or page.read_text(), re.MULTILINE
    ):
        if directive == "currentmodule":
            package = name
        elif directive == "automodule":
            names.add(name.rpartition(".")[2])
            if members and page.parent.name == "reference":
                tree = ast.parse((REPOSITORY / f"{name.replace('.', '/')}.py").read_text())
                names |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"}
        elif "." not in name and not name.endswith("DecoratedOperator"):
            names |= {name} if is_of_extension(package) == (page.parent.name == "extensions") else set()
    return names


def is_of_extension(module: str) -> bool:
    return module.startswith("airflow_hops.extensions.")


def test_public_names_equal_those_of_the_reference() -> None:
    pages = [REPOSITORY / "docs" / "reference" / f"{name}.md" for name in ("operators", "retraining", "functions")]
    described = set().union(*map(listed_on, pages))
    assert described - OF_MODULES == set(airflow_hops.__all__)
    for page in (REPOSITORY / "docs" / "extensions").glob("*.md"):
        texts = {page.stem: page.read_text()}
        if page.stem == "small":
            sections = re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", page.read_text(), re.MULTILINE)
            texts = {title.lower().replace(" ", "_"): text for title, text in sections}
        for name, text in texts.items() if page.stem != "index" else ():
            extension = importlib.import_module(f"airflow_hops.extensions.{name}")
            public = set(getattr(extension, "__all__", ()))
            assert listed_on(page, text) - OF_MODULES == public - OF_MODULES, name
    interfaces = REPOSITORY / "docs" / "howto" / "extensions.md"
    text = interfaces.read_text()
    assert [name for name in airflow_hops.extensions.__all__ if not re.search(rf"\b{name}\b", text)] == []
    described = {name.rpartition(".")[2] for name in re.findall(r"^\.\. autoclass:: (\S+)", text, re.MULTILINE)}
    assert described - set(airflow_hops.extensions.__all__) == set()


@pytest.mark.parametrize("package", [airflow_hops, airflow_hops.extensions])
def test_public_names_exist_and_are_those_for_type_checkers(package: ModuleType) -> None:
    modules = package._MODULES
    for module, names in modules.items():
        assert [name for name in names.split() if not _exists(f"{module}.{name}")] == [], module
    tree = ast.parse(Path(package.__file__ or "").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    own = {alias.name: str(node.module) for node in imports for alias in node.names}
    for module in [str(node.module) for node in imports if node.names[0].name == "*"]:
        own |= dict.fromkeys(importlib.import_module(module).__all__, module)
    assert set(package.__all__) - set(own) == set()
    assert {name for name, module in own.items() if module.startswith("airflow_hops.")} - {
        *package.__all__,
        "*",
        "lazy_names",
        "provider_info",
    } == set()


def test_names_are_imported_when_they_are_used() -> None:
    others = set(airflow_hops.__all__)
    for module in (airflow_hops.hops, airflow_hops.operators, airflow_hops.retraining):
        names = airflow_hops._MODULES[module.__name__].split()
        assert set(names) <= set(module.__all__) <= others
    for name in ("training_loop", "Drift", "BadInput", "ModelServerClient", "ModelVersionSensor"):
        assert getattr(airflow_hops, name) is getattr(importlib.import_module(airflow_hops._MODULE_OF[name]), name)
    with pytest.raises(AttributeError, match="has no attribute 'DeployOperator'"):
        airflow_hops.DeployOperator  # noqa: B018
    with pytest.raises(ModuleNotFoundError) as error:
        airflow_hops.z_score  # noqa: B018
    assert "it names their functions, as 'module:function'" in error.value.__notes__[0]
    code = "import sys, airflow_hops; print([n for n in sys.modules if n.partition('.')[0] in ('airflow', 'pyarrow')])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
