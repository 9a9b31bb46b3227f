"""The order in which people expect texts that may be numbers."""

from __future__ import annotations

import re
from typing import Any


def natural_key(value: Any) -> tuple[Any, ...]:
    """A key to sort by: numbers by value and before words, and numbers within words by value, too."""
    try:
        number = float(value)
        if number == number:
            return (0, number)
    except (TypeError, ValueError):
        pass
    # A number of any length counts by its digits, and a word comes before all numbers.
    parts = ((part, part.lstrip("0")) for part in re.split(r"(\d+)", str(value).casefold()))
    return (1, [(len(digits), digits) if part.isdecimal() else (-1, part) for part, digits in parts])
