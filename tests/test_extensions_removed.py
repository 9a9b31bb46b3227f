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


@pytest.mark.slow
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
