"""What the DAG ``search`` searches for."""

from __future__ import annotations

from typing import Any


def near(context: Any, k: int, to: int) -> dict[str, int]:
    """How far one number is from another."""
    return {"distance": abs(k - to)}
