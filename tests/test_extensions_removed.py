"""The extensions can be removed, and the rest works."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from step_runner import REPOSITORY

PACKAGE = REPOSITORY / "airflow_hops"
EXTENSIONS = sorted(path.parent.name for path in PACKAGE.glob("extensions/*/__init__.py"))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package without extensions; that none imports another is a contract of import-linter."""
    package = tmp_path_factory.mktemp("trunk") / "airflow_hops"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("static"))
    for each in EXTENSIONS:
        shutil.rmtree(package / "extensions" / each)
    package.with_name("requirements").symlink_to(REPOSITORY / "requirements")
    return package


def test_airflow_side_works_without_extensions(package: Path) -> None:
    """Its modules are imported; commands, ``doctor``, pages and what Airflow asks the provider for work."""
    _check(sys.executable, "airflow", package)


@pytest.mark.runtime
def test_runtime_side_works_without_extensions(package: Path, runtime_python: Path) -> None:
    """Its modules are imported."""
    _check(str(runtime_python), "runtime", package)


def _check(python: str, side: str, package: Path) -> None:
    program = Path(__file__).with_name("without_extensions.py")
    result = subprocess.run([python, str(program), side, str(package)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
