"""Permissions of captured requests."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from airflow_hops.serving.capture.files import open_files


@pytest.mark.parametrize("mode", [None, 0o2750])
def test_new_capture_folder_is_private_and_the_mode_of_one_that_is_there_stays(
    tmp_path: Path, mode: int | None
) -> None:
    base = tmp_path / "captured"
    if mode is not None:
        base.mkdir()
        base.chmod(mode)
    open_files(str(base)).publish("model", "a.parquet", b"rows")
    assert stat.S_IMODE(base.stat().st_mode) == (mode or 0o700)
