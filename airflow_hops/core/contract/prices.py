"""Prices of machines, and what steps and artifacts cost by them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from airflow_hops.core.contract.artifacts import BadInput


@dataclass(frozen=True)
class Prices:
    """Prices of a connection's machines and store.

    Attributes:
        currency: Code of three letters (ISO 4217).
        core_hour: Of an hour of a CPU core.
        gpu_hour: Of an hour of a GPU.
        gib_month: Of a GiB in the store for a month.
    """

    currency: str
    core_hour: float = 0.0
    gpu_hour: float = 0.0
    gib_month: float = 0.0

    @classmethod
    def read(cls, value: Mapping[str, Any], where: str) -> Self | None:
        """Reads a connection's field; None if it is empty.

        Raises:
            BadInput: the field has another form; the message begins with ``where``.
        """
        if not value:
            return None
        names = [each.name for each in fields(cls)]
        for name in value:
            if name not in names:
                raise BadInput(f"{where}: {name!r} is no price; expected {', '.join(names)}")
        if not re.fullmatch("[A-Z]{3}", str(value.get("currency"))):
            raise BadInput(f"{where}: currency is {value.get('currency')!r}, expected a code such as 'EUR'")
        for name, price in value.items():
            is_number = isinstance(price, int | float) and not isinstance(price, bool)
            if name != "currency" and not (is_number and math.isfinite(price) and price >= 0):
                raise BadInput(f"{where}: {name} is {price!r}, expected a number, 0 or more")
        return cls(**value)

    def of_use(self, core_s: float, gpu_s: float) -> float:
        """Returns what CPU seconds and GPU seconds cost."""
        return (core_s * self.core_hour + gpu_s * self.gpu_hour) / 3600

    def of_month(self, size_bytes: int) -> float:
        """Returns what bytes in the store cost in a month."""
        return size_bytes / 2**30 * self.gib_month

    def text(self, amount: float) -> str:
        """Writes an amount, such as ``EUR 1,204.50``; less than 1 with three significant digits."""
        return f"{self.currency} {amount:,.2f}" if amount >= 1 or not amount else f"{self.currency} {amount:.3g}"
