"""User code of the DAGs of fleets."""

from __future__ import annotations

from typing import Any


def all_rows(connection: Any, tables: Any) -> Any:
    return connection.sql("SELECT * FROM sales")


def ridge(rows: Any) -> Any:
    """Fails for a shop whose sales never change."""
    from sklearn.linear_model import Ridge

    if rows.pooled is not None:
        return None
    if rows.labels.min() == rows.labels.max():
        raise ValueError("the sales are all the same")
    return Ridge().fit(rows.matrix, rows.labels)
