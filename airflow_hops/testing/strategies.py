"""Contract tests of strategies of ranks, for pytest in the runtime environment."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.stages.train.rank_group import rank_group
from airflow_hops.ml.training.gang import Channel, LocalRanks, Placement, run_gang


class StrategyContract:
    """Tests that every strategy passes; a subclass names it, and makes a model.

    Attributes:
        name: Name of the strategy in the entry-point group ``airflow_hops.strategies``.
    """

    name: ClassVar[str]

    @abstractmethod
    def model(self, value: float) -> Any:
        """Returns a model, of which all weights are ``value``; called on a rank, within the group."""

    @pytest.fixture
    def run(self, tmp_path: Path) -> Any:
        """Returns a function that runs work on two ranks, with the group and the rank, and returns their results."""

        def run(work: Any) -> list[Any]:
            def on_rank(placement: Placement, channel: Channel) -> Any:
                group = rank_group(self.name)(placement, channel, 1)
                result = work(group, placement.rank)
                group.finish()
                return result

            return run_gang(on_rank, 2, logs=tmp_path / "logs", launcher=LocalRanks(2))

        return run

    def test_flag_of_one_rank_reaches_all(self, run: Any) -> None:
        assert run(lambda group, rank: [group.any_rank(rank == 1), group.any_rank(False)]) == [[True, False]] * 2

    def test_equal_weights_have_one_checksum(self, run: Any) -> None:
        ones = run(lambda group, rank: group.check_weights(self.model(1.0)))
        twos = run(lambda group, rank: group.check_weights(self.model(2.0)))
        assert ones[0] == ones[1] != twos[0] == twos[1]

    @pytest.mark.parametrize("values", [(1.0, 2.0), (float("nan"),) * 2], ids=["of ranks that differ", "NaN"])
    def test_unusable_weights_are_refused(self, run: Any, values: tuple[float, float]) -> None:
        with pytest.raises(BadInput):
            run(lambda group, rank: group.check_weights(self.model(values[rank])))

    def test_refuses_what_is_no_model(self, run: Any) -> None:
        with pytest.raises(BadInput):
            run(lambda group, rank: group.check_weights(1.5))

    def test_exports_a_model(self, run: Any) -> None:
        assert run(lambda group, rank: isinstance(group.unwrap(self.model(1.0)), type(self.model(1.0)))) == [True] * 2
