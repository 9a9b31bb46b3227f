"""The strategy ``torch``: the contract; skipped in environments without PyTorch."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from airflow_hops.testing.strategies import StrategyContract

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="there is no PyTorch in this environment")


class TestTorch(StrategyContract):
    name = "torch"

    @staticmethod
    def model(value: float) -> Any:
        import torch

        model = torch.nn.Linear(2, 1)
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, value)
        return model
