"""The walls between Airflow side, ML side and the contract between them."""

from __future__ import annotations

import ast
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from airflow_hops import core
from airflow_hops.runner.user_code import fingerprints as code

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "airflow_hops"
AIRFLOW_SIDE = "The Airflow side imports nothing of the ML side"
ML_SIDE = "The ML side and core never import Airflow"
LAYERS = "No import points upwards"
CORE = "What both sides share needs no library but fsspec"
CYCLES = "No cycles among packages"
EXTENSIONS = "airflow_hops.extensions"
OF_EXTENSIONS = [f"{EXTENSIONS}.{path.parent.name}" for path in PACKAGE.glob("extensions/*/__init__.py")]
OF_BOTH = {
    "make_format_models.py",
    "pages_health.py",  # DAGs whose health is shown, one that scores tables among them
    "test_server_kinds.py",  # serves an extension's models
    "test_request_memory.py",  # draws requests of both APIs
    "test_state.py",  # reads all state below the store that a version before has written
    "write_state.py",
}
"""Tests of the trunk that import an extension."""


def test_every_package_belongs_to_one_side() -> None:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    sides = {each["name"]: each["source_modules"] for each in contracts if "source_modules" in each}
    listed = {*sides[AIRFLOW_SIDE], *sides[ML_SIDE]}
    modules = [*PACKAGE.iterdir(), *PACKAGE.glob("extensions/*/*")]
    names = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in modules
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    either = {name for name in names if name in listed or f"{EXTENSIONS}.*.{name.rpartition('.')[2]}" in listed}
    neither = {name for name in names - either if not name.endswith(".__init__")}
    assert neither == {EXTENSIONS, "airflow_hops.testing"}
    assert len(sides[AIRFLOW_SIDE]) + len(sides[ML_SIDE]) == len(listed)


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Imports of modules, but for those for type checkers."""
    return grimp.build_graph("airflow_hops", cache_dir=None, exclude_type_checking_imports=True)


def test_the_cache_key_covers_all_that_a_step_can_import(graph: grimp.ImportGraph) -> None:
    steps = graph.find_descendants("airflow_hops.ml")
    imported = steps.union(*(graph.find_upstream_modules(module) for module in steps))
    top_level = {name.split(".")[1] for name in imported - {"airflow_hops"}}
    # Airflow's provider manager alone calls the function in which the package imports it.
    assert top_level - {"provider_info"} <= {name.removesuffix(".py") for name in code.ML_SIDE}


def test_the_cache_key_covers_single_modules_and_import_paths_of_extensions() -> None:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (each["source_modules"] for each in contracts if each["name"] == ML_SIDE)
    of_steps = {name.rpartition(".")[2] for name in layers if name.startswith(f"{EXTENSIONS}.*.")} | {"path_entry"}
    expected = {
        str(file)
        for file in PACKAGE.glob("extensions/*/**/*.py")
        if file.relative_to(PACKAGE).with_suffix("").parts[2] in of_steps
    }
    assert expected and expected <= set(code.step_sources())


def test_tests_of_the_trunk_import_no_extension() -> None:
    # Names of the package itself, such as ExtensionPage, are doors of the trunk.
    imported = re.compile(
        r"^\s*(?:from|import) (?:airflow_hops|tests|tests\.ml)\.extensions(?:\.| import [a-z])", re.MULTILINE
    )
    files = {path for path in (REPOSITORY / "tests").rglob("*.py") if "extensions" not in path.parts}
    assert {path.name for path in files if imported.search(path.read_text())} == OF_BOTH


def test_a_forbidden_import_breaks_a_contract(tmp_path: Path) -> None:
    forbidden = [
        ("operators.base", "import tensorflow", AIRFLOW_SIDE),
        ("runner.user_code.files", "import airflow_hops.ml.step.context", AIRFLOW_SIDE),
        ("ml.step.context", "import airflow", ML_SIDE),
        ("core.store.files", "import airflow_hops.runner.launchers.local", LAYERS),
        ("serving.flags", "import airflow_hops.ml.step.context", LAYERS),
        ("core.artifacts.artifact", "import pyarrow", CORE),
    ]
    shutil.copytree(PACKAGE, tmp_path / "airflow_hops", ignore=shutil.ignore_patterns("__pycache__", "static"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    cycle = ("ml.readers.limits", "import airflow_hops.ml.statistics.generate", CYCLES)
    for module, line, _ in (*forbidden, cycle):
        with (tmp_path / "airflow_hops" / f"{module.replace('.', '/')}.py").open("a") as source:
            source.write(f"\n{line}\n")
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1
    # After the summary, each contract's name is underlined, and followed by what breaks it.
    _, *parts = re.split(r"^(.+)\n-{10,}$", result.stdout, flags=re.M)
    report = {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}
    assert re.search(r"\.(readers -> \.statistics|statistics -> \.readers)", report[CYCLES]), report[CYCLES]
    for module, line, broken in forbidden:
        assert f"airflow_hops.{module} -> {line.removeprefix('import ')} (l." in report[broken], (module, line)


def test_modules_have_no_import_cycle() -> None:
    """Imports in functions and for type checkers count, too; import-linter looks at packages only.

    The package itself imports the public names for type checkers, and at run time those that are asked for.
    """
    graph = grimp.build_graph("airflow_hops", cache_dir=None)
    modules = graph.modules - {"airflow_hops"}
    imports = {module: graph.find_modules_directly_imported_by(module) - {module} for module in modules}
    TopologicalSorter(imports).prepare()  # raises CycleError


def test_modules_of_both_sides_import_the_standard_library_alone() -> None:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (rooms,) = (each["source_modules"] for each in contracts if each["name"] == CORE)
    names = [module.name for module in pkgutil.walk_packages(core.__path__, "airflow_hops.core.")]
    program = "import " + ", ".join(name for name in names if ".".join(name.split(".")[:3]) in rooms)
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); {program}"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_names_of_modules_stay_within_their_walls() -> None:
    """Only one package uses Airflow's internals, and no string of the trunk names a module of an extension."""
    for path in sorted(PACKAGE.rglob("*.py")):
        part, code = path.relative_to(PACKAGE).parts[0], list(ast.walk(ast.parse(path.read_text())))
        assert part == "airflow_internals" or not list(airflow_internals_in(code)), path
        texts = [node.value for node in code if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        assert part == "extensions" or not [text for text in texts if text.startswith(tuple(OF_EXTENSIONS))], path


def test_airflow_internals_are_recognized() -> None:
    for line in (
        "import airflow.models",
        "import airflow",
        "from airflow import settings",
        "from airflow.models.dagrun import DagRun",
        "from airflow.sdk.log import redact",
        "def f():\n    from airflow.utils import yaml",
        "importlib.import_module('airflow.models')",
    ):
        assert list(airflow_internals_in(ast.walk(ast.parse(line)))), line
    for line in ("from airflow.sdk import DAG", "from airflow.providers.ftp.hooks.ftp import F", "import airflow_hops"):
        assert not list(airflow_internals_in(ast.walk(ast.parse(line)))), line


def airflow_internals_in(code: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the modules of Airflow, outside its SDK and providers, that are imported or named in a string."""
    for node in code:
        match node:
            case ast.ImportFrom(module=str(module), level=0) | ast.Import(names=[ast.alias(name=module), *_]):
                pass
            case ast.Constant(value=str(module)) if module != "airflow":  # the program's name
                pass
            case _:
                continue
        if re.fullmatch(r"airflow(\.\w+)*", module) and not re.match(r"airflow\.(sdk$|providers\.)", module):
            yield module
