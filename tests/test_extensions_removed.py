"""The extensions can be removed, and the rest works."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

from step_runner import REPOSITORY

PACKAGE = REPOSITORY / "airflow_hops"
EXTENSIONS = sorted(path.parent.name for path in PACKAGE.glob("extensions/*/__init__.py"))


def test_no_module_of_the_trunk_names_an_extension() -> None:
    """Imports of modules are a contract of import-linter; these are the names in strings."""
    names = {f"airflow_hops.extensions.{name}" for name in EXTENSIONS}
    for path in (path for path in PACKAGE.rglob("*.py") if "extensions" not in path.relative_to(PACKAGE).parts):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not [name for name in names if node.value.startswith(name)], path


def test_airflow_side_works_without_extensions(tmp_path: Path) -> None:
    """Commands, ``doctor``, pages and what Airflow asks the provider for work."""
    package = tmp_path / "airflow_hops"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("static", "__pycache__"))
    for each in EXTENSIONS:
        shutil.rmtree(package / "extensions" / each)
    (tmp_path / "requirements").symlink_to(REPOSITORY / "requirements")
    program = Path(__file__).with_name("without_extensions.py")
    result = subprocess.run([sys.executable, str(program), str(package)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
