"""Places of ranks: the contract, and errors of places that are not registered."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.rank_places import place_of
from airflow_hops.testing.rank_places import RankPlaceContract


class TestLocalPlace(RankPlaceContract):
    name = "local"

    @pytest.fixture
    def where(self) -> dict[str, Any]:
        return {"kind": "local", "slots": 2}


def test_unregistered_place_is_refused() -> None:
    with pytest.raises(BadInput, match=r"kind of the ranks' place is 'moon', expected one of"):
        place_of({"kind": "moon"})
