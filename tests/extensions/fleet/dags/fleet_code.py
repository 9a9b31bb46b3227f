"""User code of the DAGs of fleets."""

from __future__ import annotations

from typing import Any


def all_rows(connection: Any, tables: Any) -> Any:
    return connection.sql("SELECT * FROM sales")
