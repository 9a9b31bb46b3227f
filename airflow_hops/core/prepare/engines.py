"""Engines of ``prepare`` that ``PrepareOperator(engine=…)`` names; distributions add others."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_hops.core.extensions import PREPARE_ENGINES, load_all
from airflow_hops.core.names import check_known


@dataclass(frozen=True)
class PrepareEngine:
    """An engine of ``prepare``, registered as an entry point of the group ``airflow_hops.prepare_engines``.

    The entry point's name is the operator's ``engine``. Both sides import it.

    Attributes:
        rows: ``module:function`` of the runtime's side, an
            :class:`~airflow_hops.ml.prepare.engine.EngineRows`.
        uses_spark: Whether the step runs where the operator's Spark connection says, with its ``conf``.
    """

    rows: str
    uses_spark: bool = False


SPARK = PrepareEngine("airflow_hops.ml.prepare.spark:prepared_rows", uses_spark=True)
DUCKDB = PrepareEngine("airflow_hops.ml.prepare.duckdb:prepared_rows")


def prepare_engine(name: str) -> PrepareEngine:
    """Returns an engine by name. Raises BadInput if it is not registered."""
    known = load_all(PREPARE_ENGINES, PrepareEngine)
    check_known("engine", name, sorted(known))
    return known[name]
