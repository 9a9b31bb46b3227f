"""Strategies of other distributions, and the contract tests that their authors run."""

from __future__ import annotations

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

_STRATEGY = """
import json

import numpy as np

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.stage.rank_group import RankGroup
from airflow_hops.ml.training.digests import digest
from airflow_hops.ml.training.gang.rendezvous import SharedValues


class ArrayGroup(RankGroup):
    def __init__(self, placement, channel, options, threads):
        self.values, self.asked = SharedValues("arrays", placement, channel), 0

    def gather(self, values):
        self.asked += 1
        return [json.loads(each) for each in self.values.exchange(f"{self.asked}", json.dumps(values))]

    def check_weights(self, model):
        if not isinstance(model, np.ndarray) or not np.isfinite(model).all():
            raise BadInput(f"{model!r} is not an array of numbers")
        return self.values.check_equal([("weights", digest(model))], "train alike")

    def finish(self):
        self.values.exchange("finished", "yes")
"""


@pytest.fixture(autouse=True)
def arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    points = "[airflow_hops.strategies]\narrays = array_strategy:ArrayGroup\nbroken = array_strategy:SharedValues\n"
    write_distribution(tmp_path / "site", "hops-arrays", points)
    (tmp_path / "site" / "array_strategy.py").write_text(_STRATEGY)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    sys.modules.pop("array_strategy", None)


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
