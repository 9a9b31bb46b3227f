"""Data sets that organisations share with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.sharing.core.source import DatasetSource

__all__ = ["DatasetSource"]

__getattr__ = lazy_names(__name__, {".core.source": "DatasetSource"})
