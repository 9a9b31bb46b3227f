"""Tables of databases, Spark's and Hive's catalogues, Iceberg and Delta: as sources, and to write to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.tables.core.sources import QuerySource, TableSource
    from airflow_hops.extensions.tables.core.tables import Table
    from airflow_hops.extensions.tables.operators import WriteTableOperator

__all__ = ["QuerySource", "Table", "TableSource", "WriteTableOperator"]

__getattr__ = lazy_names(
    __name__, {".core.sources": "QuerySource TableSource", ".core.tables": "Table", ".operators": "WriteTableOperator"}
)
