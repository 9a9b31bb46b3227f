"""Contract tests of strategies of ranks, for pytest in the runtime environment."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.ml.training.gang import Channel, LocalRanks, Placement, run_gang
from airflow_hops.ml.training.stage.rank_group import RankGroup, rank_group
from airflow_hops.testing.rank_places import in_own_process

_Work = Callable[[RankGroup, int], Any]


class StrategyContract:
    """Tests that every strategy passes; a subclass names it, and makes a model.

    Ranks start in another process, which imports the module of the subclass.

    Attributes:
        name: Name of the strategy in the entry-point group ``airflow_hops.strategies``.
    """

    name: ClassVar[str]

    @staticmethod
    @abstractmethod
    def model(value: float) -> Any:
        """Returns a model, of which all weights are ``value``; called on a rank, within the group."""

    @pytest.fixture
    def run(self, tmp_path: Path) -> object:
        """Returns a function that runs work on two ranks, with the group and the rank, and returns their results."""
        return lambda work: in_own_process(_run_ranks, self.name, work, tmp_path / "logs")

    def test_ranks_gather_numbers(self, run: Callable[[_Work], list[Any]]) -> None:
        assert run(_numbers) == [[[[0, 0.1], [1, 0.1]], [[7], [7]]]] * 2

    def test_equal_weights_have_one_checksum(self, run: Callable[[_Work], list[Any]]) -> None:
        ones, twos = run(partial(_checksum, self.model, (1.0, 1.0))), run(partial(_checksum, self.model, (2.0, 2.0)))
        assert ones[0] == ones[1] != twos[0] == twos[1]

    @pytest.mark.parametrize("values", [(1.0, 2.0), (float("nan"),) * 2], ids=["of ranks that differ", "NaN"])
    def test_unusable_weights_are_refused(self, run: Callable[[_Work], list[Any]], values: tuple[float, float]) -> None:
        with pytest.raises(BadInput):
            run(partial(_checksum, self.model, values))

    def test_refuses_what_is_no_model(self, run: Callable[[_Work], list[Any]]) -> None:
        with pytest.raises(BadInput):
            run(partial(_checksum, float, (1.0, 1.0)))

    def test_exports_a_model(self, run: Callable[[_Work], list[Any]]) -> None:
        assert run(partial(_is_unwrapped, self.model)) == [True, True]


def _run_ranks(strategy: str, work: _Work, logs: Path) -> list[object]:
    return run_gang(partial(_join, strategy, work), 2, logs=logs, launcher=LocalRanks(2))


def _join(strategy: str, work: _Work, placement: Placement, channel: Channel) -> object:
    group = rank_group(strategy)(placement, channel, TrainingOptions(strategy=strategy), 1)
    result = work(group, placement.rank)
    group.finish()
    return result


def _numbers(group: RankGroup, rank: int) -> list[list[list[float]]]:
    return [group.gather([rank, 0.1]), group.gather([7])]


def _checksum(model: Callable[[float], object], values: tuple[float, float], group: RankGroup, rank: int) -> str:
    return group.check_weights(model(values[rank]))


def _is_unwrapped(model: Callable[[float], object], group: RankGroup, rank: int) -> bool:
    return type(group.unwrap(model(1.0))) is type(model(1.0))
