"""Ranks of PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.torch.operators import TorchTrainOperator

__all__ = [
    "TorchTrainOperator",
]

__getattr__ = lazy_names(__name__, {".operators": "TorchTrainOperator"})
