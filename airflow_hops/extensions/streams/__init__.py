"""Kafka topics: as sources and as triggers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.streams.core.source import TopicSource
    from airflow_hops.extensions.streams.triggers import TopicTrigger

__all__ = ["TopicSource", "TopicTrigger"]

__getattr__ = lazy_names(__name__, {".core.source": "TopicSource", ".triggers": "TopicTrigger"})
