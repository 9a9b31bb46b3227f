"""Quotas and costs, a garbage collection, and model cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.governance.operators import CollectGarbageOperator

__all__ = ["CollectGarbageOperator"]

__getattr__ = lazy_names(__name__, {".operators": "CollectGarbageOperator"})
