"""Logs of any endpoint as captured rows, and the adoption of a model that serves already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.captured_logs.core.source import CapturedSource

__all__ = ["CapturedSource"]

__getattr__ = lazy_names(__name__, {".core.source": "CapturedSource"})
