"""Stages of other distributions, and the contract tests that their authors run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.step.context import resolve
from airflow_hops.testing.stages import StageContract

sys.path.append(str(Path(__file__).resolve().parents[1]))

from example_extensions import write_distribution

ENTRY_POINTS = "[airflow_hops.stages]\ndoubled = example_stage:run\nbroken = example_stage:walk\n"


@pytest.fixture(autouse=True)
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    write_distribution(tmp_path / "site", "hops-example", ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    sys.modules.pop("example_stage", None)


class TestStageOfAnotherDistribution(StageContract):
    name = "doubled"
    output_kind = "doubled"

    def test_takes_params(self, run: Any) -> None:
        assert run(factor=3).value["metrics"] == {"doubled": 63.0}
        assert run(factor=-1).error == "factor is -1, expected 0 or more"


def test_broken_stage_names_its_distribution() -> None:
    with pytest.raises(BadInput, match="'broken' = 'example_stage:walk' of the distribution 'hops-example' cannot be"):
        resolve("example_stage:walk")
