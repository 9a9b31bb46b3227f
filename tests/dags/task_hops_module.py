"""A module beside the DAG file, for what a shipped function may import."""

from __future__ import annotations


def double(number: int) -> int:
    """Twice the number."""
    return 2 * number
