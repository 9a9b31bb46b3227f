"""A Parquet file that brings a program along: no process of ours runs it, and the error names the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import crafted_files
import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.captured.feedback import read_feedback

ROOT = Path(__file__).parents[2]


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs a fresh Python, which has imported nothing of this package yet."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=check)


def test_feedback_is_not_read_from_a_crafted_file(tmp_path: Path) -> None:
    (tmp_path / "_feedback").mkdir()
    crafted_files.write_crafted(tmp_path / "_feedback" / "crafted.parquet", tmp_path / "proof")
    refused = pytest.raises(BadInput, match=r"_feedback/crafted\.parquet: refused: a column is of the type 'arrow")
    with nullcontext() if crafted_files.AS_STORED else refused:
        read_feedback(str(tmp_path))
    assert not (tmp_path / "proof").exists()


@pytest.mark.slow
@pytest.mark.parametrize("pyarrow_is_imported", ["before", "after"])
def test_pickled_types_run_in_no_process(tmp_path: Path, pyarrow_is_imported: str) -> None:
    crafted = crafted_files.write_crafted(tmp_path / "crafted.parquet", tmp_path / "proof")
    ended = _run(crafted_files.__file__, str(crafted), pyarrow_is_imported)
    result = json.loads(ended.stdout.splitlines()[-1])
    assert tuple(result) == crafted_files.PACKAGES
    for entry, answer in result.items():
        refused = "RuntimeError: Disallowed deserialization of 'arrow.py_extension_type'"
        assert answer.startswith("3 rows" if crafted_files.AS_STORED else refused), entry
    assert not (tmp_path / "proof").exists()


def test_pyarrow_is_imported_on_first_use() -> None:
    program = "import sys, airflow_hops.ml, airflow_hops.hops, airflow_hops.serving; print('pyarrow' in sys.modules)"
    assert _run("-P", "-c", program).stdout == "False\n"


@pytest.mark.skipif(crafted_files.AS_STORED, reason="this profile's PyArrow needs no hotfix")
def test_an_old_pyarrow_without_the_hotfix_is_not_used() -> None:
    program = "import sys, airflow_hops.ml; sys.modules['pyarrow_hotfix'] = None; import pyarrow"
    ended = _run("-P", "-c", program, check=False)
    assert ended.returncode == 1
    assert "and pyarrow_hotfix, which prevents it, is not installed; run 'airflow hops runtime create'" in ended.stderr
