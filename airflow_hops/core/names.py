"""Messages about unknown names, with suggestions for misspelled ones."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from airflow_hops.core.errors import InvalidArgument


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: names that are similar but for case and spaces, or none."""
    spelt: dict[str, list[str]] = {}
    for each in known:
        spelt.setdefault(each.strip().casefold(), []).append(each)
    close = [each for match in get_close_matches(name.strip().casefold(), spelt) for each in spelt[match]]
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def check_known(what: str, name: object, known: Iterable[str]) -> None:
    """Raises BadInput unless a name is among those that are known; ``what`` is the subject of the message."""
    names = list(known)
    if name not in names:
        raise InvalidArgument(
            what, name, f", expected one of {', '.join(names) or 'none'}{suggestion(str(name), names)}"
        )
