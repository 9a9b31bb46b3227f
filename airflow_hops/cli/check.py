"""A row of the doctor's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """A row of the doctor's table.

    Attributes:
        status: ``ok``; ``warn`` if a feature is limited; ``fail`` if pipelines would fail.
        advice: Suggested fix; empty if there is nothing to fix.
    """

    name: str
    status: Status
    found: str
    advice: str = ""
