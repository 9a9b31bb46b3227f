"""Values of flags from their text; what is not valid is an error that says what was expected."""

from __future__ import annotations

import argparse
import math


def _number(text: str, low: float, high: float, expected: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"value is {text!r}; expected {expected}")
    return value


def port(text: str) -> int:
    """A port; 0 is any free one."""
    return _number(text, 0, 65535, "a port from 0 to 65535")


def rest_port(text: str) -> int | None:
    """None is off, 0 any free port."""
    if text == "auto":
        return 0
    return _number(text, 0, 65535, "a port from 0 to 65535, or 'auto'") or None


def addresses(text: str) -> tuple[str, ...]:
    """Addresses of servers, separated by commas."""
    addresses = tuple(text.split(","))
    for address in addresses:
        host, _, port = address.rpartition(":")
        is_path = address.startswith("unix:") and len(address) > len("unix:")
        if not is_path and not (host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
            raise argparse.ArgumentTypeError(f"value is {address!r}; expected host:port or unix:path")
    return addresses


def count(text: str) -> int:
    """Reads a whole number, 0 or more."""
    return _number(text, 0, math.inf, "a whole number, 0 or more")


def spool_bytes(text: str) -> int:
    """A size that holds one request at least."""
    return _number(text, 2**16, math.inf, "a whole number of bytes, 65536 or more")


def positive(text: str) -> int:
    """A whole number, 1 or more."""
    return _number(text, 1, math.inf, "a whole number, 1 or more")


def _float(text: str, low: float, high: float, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"value is {text!r}; expected {expected}")
    return value


def arguments(text: str) -> str:
    """Pairs name=value, separated by commas."""
    for pair in text.split(","):
        name, equals, _ = pair.partition("=")
        if pair and not (name and equals):
            raise argparse.ArgumentTypeError(f"value is {pair!r}; expected name=value, separated by commas")
    return text


def percent(text: str) -> float:
    """A percent."""
    return _float(text, 0, 100, "a percent from 0 to 100")


def tolerance(text: str) -> float:
    """A number, 0 or more."""
    return _float(text, 0, 1e300, "a number, 0 or more")


def seconds(text: str) -> float:
    """Seconds, 0 or more."""
    return _float(text, 0, 1e9, "seconds, 0 or more")


def interval(text: str) -> float:
    """Seconds between looks; below 0 there is none."""
    return _float(text, -1e9, 1e9, "seconds")


def positive_float(text: str) -> float:
    """A number above 0."""
    return _float(text, 1e-3, 1e9, "a number above 0")


def boolean(text: str) -> bool:
    """True or false."""
    if text.lower() in ("true", "1"):
        return True
    if text.lower() in ("false", "0"):
        return False
    raise argparse.ArgumentTypeError(f"value is {text!r}; expected true or false")
