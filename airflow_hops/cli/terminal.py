"""Output of commands without what a terminal would obey: texts come from descriptions, names and rows of others."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

from airflow_hops.core.steps.protocol import Line

if TYPE_CHECKING:
    from rich.console import Console

_OBEYED = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
"""Control characters except tab and line feed, and those that change the direction of text."""
_CONTROL = re.compile(_OBEYED)
_CONTROL_OR_STYLE = re.compile(rf"\x1b\[([\d;]*)m|{_OBEYED}")
_COLOUR, _HIDDEN = re.compile(r"\b[34]8;(5;\d+|2;\d+;\d+;\d+)"), re.compile(r"\b0*8\b")


def shown(text: str, *, styles: bool = False) -> str:
    """Returns a text with its control characters written as the escapes of Python.

    Args:
        text: The text.
        styles: Whether colours and weights of characters stay, which commands use on a terminal; hidden text does not.
    """
    if styles:
        return _CONTROL_OR_STYLE.sub(_styled, text)
    return _CONTROL.sub(lambda match: _escape(match[0]), text)


def _styled(match: re.Match[str]) -> str:
    hides = match[1] is None or _HIDDEN.search(_COLOUR.sub("", match[1]))
    return _escape(match[0]) if hides else match[0]


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


class _Shown:
    """A stream that writes texts as :func:`shown` returns them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes a text; styles stay on a terminal."""
        return self._stream.write(shown(text, styles=self._stream.isatty()))

    def writelines(self, lines: Any) -> None:
        """Writes several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def print_warning(line: Line) -> None:
    """Prints a line of a step's output to standard error if it is a warning; commands report errors themselves."""
    if line.level == logging.WARNING and line.progress is None:
        print(f"warning: {line.text}", file=sys.stderr)


def progress_console() -> Console:
    """Returns the console of progress bars, which move the cursor; they have no text of others."""
    from rich.console import Console

    return Console(file=getattr(sys.stderr, "_stream", sys.stderr))


@contextmanager
def terminal() -> Iterator[None]:
    """Within it, nothing printed moves the cursor, clears the screen, or hides text."""
    with redirect_stdout(_Shown(sys.stdout)), redirect_stderr(_Shown(sys.stderr)):
        yield
