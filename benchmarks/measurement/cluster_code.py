"""Code of the cluster benchmark: the peer's, without the key, as the flights are repeated."""

from __future__ import annotations

from typing import Any

from benchmarks.dags.peer import features
from benchmarks.dags.peer.prepare_spark import prepare as prepare_flights


def prepare(spark: Any, tables: dict[str, Any]) -> Any:
    """Prepares the flights."""
    return prepare_flights(spark, tables).drop("flight_id")


preprocess = features.preprocess
