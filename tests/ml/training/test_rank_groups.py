"""Strategies of other distributions: the one of the page on extensions, written from public names alone."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.ml.training.stage.rank_group import all_ranks, rank_group
from airflow_hops.testing.strategies import StrategyContract

sys.path.append(str(Path(__file__).resolve().parents[2]))

from example_extensions import write_distribution

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "extensions.md"


@pytest.fixture(autouse=True)
def arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    points = "[airflow_hops.strategies]\narrays = hops_arrays:ArrayGroup\nbroken = hops_arrays:SharedValues\n"
    write_distribution(tmp_path / "site", "hops-arrays", points)
    (code,) = re.findall(r"```python\n# hops_arrays\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "site" / "hops_arrays.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    sys.modules.pop("hops_arrays", None)


class TestArrays(StrategyContract):
    name = "arrays"

    @staticmethod
    def model(value: float) -> Any:
        return np.full(3, value)


@pytest.mark.parametrize(
    ("strategy", "np", "expected"), [("array", 2, "mean 'arrays'"), ("single", 2, "np is 2"), ("arrays", "2", "np")]
)
def test_unusable_ranks_are_refused(strategy: str, np: Any, expected: str) -> None:
    assert all_ranks(TrainingOptions(strategy="arrays", np=3)) == 3
    with pytest.raises(BadInput, match=expected):
        all_ranks(TrainingOptions(strategy=strategy, np=np))


def test_class_of_another_kind_is_refused() -> None:
    with pytest.raises(BadInput, match=r"of the distribution 'hops-arrays' is .*expected a subclass of RankGroup"):
        rank_group("broken")
