"""Marks of stability on public classes and functions.

A public name without a mark is stable: it goes only after a deprecation. The page on releases lists the marks of all
public names, as they stand in the code.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

_Named = TypeVar("_Named", bound=Callable[..., Any])


def experimental(named: _Named) -> _Named:
    """Marks a class or function that any minor version may change without a deprecation."""
    named.__stability__ = "experimental"  # type: ignore[attr-defined]
    return named


def deprecated(since: str, removal: str, instead: str) -> Callable[[_Named], _Named]:
    """Marks a class or function that goes: it works as before, and warns where it is made or called.

    Args:
        since: Version that deprecates it.
        removal: Version without it, at least one minor version and three months later.
        instead: Its replacement, for the warning.
    """

    def mark(named: Any) -> Any:
        message = f"{named.__name__} is deprecated since {since}, and goes with {removal}; use {instead}"
        is_class = isinstance(named, type)
        works = named.__init__ if is_class else named

        @functools.wraps(works)
        def warn(*args: Any, **kwargs: Any) -> Any:
            frame, level = sys._getframe(1), 2
            while frame.f_back and frame.f_globals.get("__name__", "").startswith("airflow_hops."):
                frame, level = frame.f_back, level + 1  # the type of operators makes a DAG file's tasks
            warnings.warn(message, FutureWarning, stacklevel=level)  # Python hides a DeprecationWarning from users
            return works(*args, **kwargs)

        if not is_class:
            return warn
        named.__init__ = warn
        return named

    return mark
