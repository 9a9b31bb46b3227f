"""Rows of shops as examples."""

from __future__ import annotations

from typing import Any


def prepare(connection: Any, tables: Any) -> Any:
    """Takes the rows as they are; their number is the key, which holds a fifth of them out."""
    return connection.sql("SELECT * FROM sales")
