"""The import of onnxruntime leaves the temporary folder alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_hops.core.processes.programs import with_package


@pytest.mark.parametrize("telemetry", [{}, {"ORT_DISABLE_TELEMETRY": "0"}])
def test_import_of_onnx_models_writes_through_no_link_in_the_temporary_folder(
    tmp_path: Path, telemetry: dict[str, str]
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("untouched")
    folder = tmp_path / "tmp"
    folder.mkdir()
    (folder / ".ses").symlink_to(mine)
    # onnxruntime has no telemetry where CI is set, either
    environment = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}
    environment = with_package({**environment, "TMPDIR": str(folder), **telemetry})
    subprocess.run(
        [sys.executable, "-c", "import airflow_hops.extensions.frameworks.serving.onnx"], env=environment, check=True
    )
    assert (mine.read_text() == "untouched") == (not telemetry), "the telemetry that was asked for"
