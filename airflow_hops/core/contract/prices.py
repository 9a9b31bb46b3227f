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
        gpu_hour: Of an hour of a GPU, or of those of each name, as NVML has it. GPUs of other or unknown names have the
            price of the name ``default`` or, without one, the highest, so that none is free by mistake.
        gib_month: Of a GiB in the store for a month.
    """

    currency: str
    core_hour: float = 0.0
    gpu_hour: float | Mapping[str, float] = 0.0
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
        by_name = value.get("gpu_hour")
        prices = {name: price for name, price in value.items() if name != "currency"}
        if isinstance(by_name, Mapping) and by_name:
            del prices["gpu_hour"]
            prices |= {f"gpu_hour[{name!r}]": price for name, price in by_name.items()}
        for name, price in prices.items():
            is_number = isinstance(price, int | float) and not isinstance(price, bool)
            if not (is_number and math.isfinite(price) and price >= 0):
                or_names = ", or an object of them by names of GPUs" if name == "gpu_hour" else ""
                raise BadInput(f"{where}: {name} is {price!r}, expected a number, 0 or more{or_names}")
        return cls(**value)

    def of_use(self, cost: Mapping[str, float]) -> float:
        """Returns the price of the cost in a manifest."""
        core_hours, gpu_hours = cost.get("core_s", 0.0) / 3600, cost.get("gpu_s", 0.0) / 3600
        if not isinstance(self.gpu_hour, Mapping):
            return core_hours * self.core_hour + gpu_hours * self.gpu_hour
        named = sum(price * cost.get(gpu_s_of(name), 0.0) / 3600 for name, price in self.gpu_hour.items())
        other = self.gpu_hour.get("default", max(self.gpu_hour.values())) * self.other_gpu_s(cost) / 3600
        return core_hours * self.core_hour + named + other

    def other_gpu_s(self, cost: Mapping[str, float]) -> float:
        """Returns the seconds of GPUs without a price of their name, if there are prices by name."""
        if not isinstance(self.gpu_hour, Mapping):
            return 0.0
        return max(cost.get("gpu_s", 0.0) - sum(cost.get(gpu_s_of(name), 0.0) for name in self.gpu_hour), 0.0)

    def of_month(self, size_bytes: int) -> float:
        """Returns what bytes in the store cost in a month."""
        return size_bytes / 2**30 * self.gib_month

    def text(self, amount: float) -> str:
        """Writes an amount with its currency, such as ``EUR 1,204.50``."""
        return f"{self.currency} {amount_text(amount)}"


def amount_text(amount: float) -> str:
    """Writes an amount, such as ``1,204.50``; less than 1 with three significant digits."""
    return f"{amount:,.2f}" if abs(amount) >= 1 or not amount else f"{amount:.3g}"


def gpu_s_of(name: str) -> str:
    """Returns the name of the seconds of GPUs of one name in a cost; they are a part of ``gpu_s``."""
    return f"gpu_s of {name}"
