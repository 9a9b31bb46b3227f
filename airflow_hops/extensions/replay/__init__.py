"""Back-tests of retraining policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.replay.operators import BacktestOperator

__all__ = ["BacktestOperator"]

__getattr__ = lazy_names(__name__, {".operators": "BacktestOperator"})
