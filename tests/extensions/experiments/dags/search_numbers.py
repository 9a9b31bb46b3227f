"""The search space and function of the DAG ``search``."""

from __future__ import annotations

import time
from typing import Any


def near(context: Any, k: int, to: int) -> dict[str, int]:
    """How far one number is from another."""
    return {"distance": abs(k - to)}


def fail_if_far(context: Any, k: int, to: int) -> int:
    """Says how far one number is from another; where that is far, it fails, and where it is very far, it sleeps."""
    context.report(1, distance=abs(k - to))
    if abs(k - to) > 50:
        time.sleep(600)
    if abs(k - to) > 10:
        raise ValueError(f"{k} is far from {to}")
    return abs(k - to)
