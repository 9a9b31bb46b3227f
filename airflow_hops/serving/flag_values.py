"""Parsers of flag values; errors name the expected value."""

from __future__ import annotations

import argparse
import math
from functools import partial


def _number(text: str, low: float, high: float, expected: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"value is {text!r}; expected {expected}")
    return value


def rest_port(text: str) -> int | None:
    """Parses a port: "auto" becomes 0 (any free port), and 0 becomes None (off)."""
    if text == "auto":
        return 0
    return _number(text, 0, 65535, "a port from 0 to 65535, or 'auto'") or None


def number(text: str, low: float, high: float, expected: str) -> float:
    """Parses a number within limits; ``expected`` describes it in the error."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"value is {text!r}; expected {expected}")
    return value


def arguments(text: str) -> str:
    """Checks pairs name=value, separated by commas."""
    for pair in text.split(","):
        name, equals, _ = pair.partition("=")
        if pair and not (name and equals):
            raise argparse.ArgumentTypeError(f"value is {pair!r}; expected name=value, separated by commas")
    return text


def boolean(text: str) -> bool:
    """Parses true or false."""
    if text.lower() in ("true", "1"):
        return True
    if text.lower() in ("false", "0"):
        return False
    raise argparse.ArgumentTypeError(f"value is {text!r}; expected true or false")


port = partial(_number, low=0, high=65535, expected="a port from 0 to 65535")
count = partial(_number, low=0, high=math.inf, expected="a whole number, 0 or more")
positive = partial(_number, low=1, high=math.inf, expected="a whole number, 1 or more")
milliseconds = partial(_number, low=1, high=2**31 - 1, expected="milliseconds, 1 to 2147483647")
spool_bytes = partial(_number, low=2**16, high=math.inf, expected="a whole number of bytes, 65536 or more")
percent = partial(number, low=0, high=100, expected="a percent from 0 to 100")
seconds = partial(number, low=0, high=1e9, expected="seconds, 0 or more")
interval = partial(number, low=-1e9, high=1e9, expected="seconds")  # below 0, nothing is polled
positive_float = partial(number, low=1e-3, high=1e9, expected="a number above 0")
