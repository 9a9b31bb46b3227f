"""Suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: similar known names, or empty text."""
    close = get_close_matches(name, list(known))
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
