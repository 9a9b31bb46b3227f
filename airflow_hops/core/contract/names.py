"""Names that users write, and the known ones that they may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns the end of a message on an unknown name: the known names that are close to it, or nothing."""
    close = get_close_matches(name, list(known))
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
