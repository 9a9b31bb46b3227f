"""Any extension can be removed, and the rest works."""

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
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Copies of the package, each without one extension, and one without any."""
    results = []
    for removed in [*([each] for each in EXTENSIONS), EXTENSIONS]:
        name = removed[0] if len(removed) == 1 else "all"
        package = tmp_path_factory.mktemp(f"without_{name}") / "airflow_hops"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("static"))
        for each in removed:
            shutil.rmtree(package / "extensions" / each)
        package.with_name("requirements").symlink_to(REPOSITORY / "requirements")
        results.append(str(package))
    return results


def test_airflow_side_works_without_extension(packages: list[str]) -> None:
    """Its modules are imported; commands, ``doctor``, pages and what Airflow asks the provider for work."""
    _check(sys.executable, "airflow", packages)


@pytest.mark.runtime
def test_runtime_side_works_without_extension(packages: list[str], runtime_python: Path) -> None:
    """Its modules are imported."""
    _check(str(runtime_python), "runtime", packages)


def _check(python: str, side: str, packages: list[str]) -> None:
    program = Path(__file__).with_name("without_extension.py")
    result = subprocess.run([python, str(program), side, *packages], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
