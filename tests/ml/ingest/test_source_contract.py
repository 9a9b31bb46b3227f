"""The contract of sources, for sources of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_hops.core.contract.sources import Source
from airflow_hops.testing.sources import ReaderContract


class TestFiles(ReaderContract):
    rows = 3

    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        (tmp_path / "rows.csv").write_text("at,delay\n2013-01-01,1\n2013-01-02,2\n2013-01-03,3\n")
        return Source(str(tmp_path / "rows.csv"), time_column="at")
