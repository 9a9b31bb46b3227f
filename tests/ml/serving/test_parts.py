"""Parts of another distribution: the one of the page on extensions."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from example_extensions import write_distribution

from airflow_hops.core.errors import BadInput
from airflow_hops.serving.parts import server_parts
from airflow_hops.testing.server_parts import ServerPartContract

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "extensions.md"
POINTS = "[airflow_hops.server_parts]\nrows = hops_rows:RowCounter\n"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_distribution(tmp_path, "hops-shown", POINTS)
    (code,) = re.findall(r"```python\n# hops_rows\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "hops_rows.py").write_text(code)
    monkeypatch.delitem(sys.modules, "hops_rows", raising=False)
    monkeypatch.syspath_prepend(tmp_path)


class TestRows(ServerPartContract):
    name = "rows"

    @pytest.fixture
    def arguments(self) -> list[str]:
        return ["--rows_metric=rows"]


def test_broken_part_names_its_distribution(tmp_path: Path) -> None:
    (tmp_path / "hops_rows.py").write_text("RowCounter = 1")
    with pytest.raises(BadInput, match=r"of the distribution 'hops-shown' is 1, expected a ServerPart"):
        server_parts()
