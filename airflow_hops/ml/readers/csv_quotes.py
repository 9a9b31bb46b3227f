"""Quotes in CSV: finds the ends of rows, and whether they are certain.

A quote opens a value only at the value's start; elsewhere in a value without quotes it is a plain character. Within
quotes, a quote is doubled or, if the source says so, escaped. A file is refused if it breaks these rules, or if another
convention of quotes also fits it and results in other rows or values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from shlex import quote

import numpy as np

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import Source

# The state that must be kept across blocks: the number of lines (for messages), the widths of rows, the first row with
# an ambiguous quote, and whether a backslash was seen to be plain. A doubt is raised as soon as the rows prove it, or
# at the end of the file if only the whole file can: a value of several lines is certain only if some row has another
# width.

_BACKSLASH = "\\"
_WHEN = {
    ("escape", _BACKSLASH): "if a backslash escapes quotes, as Spark writes them",
    ("escape", ""): "if backslashes are plain characters",
    ("quote", '"'): "if a value may have several lines",
    ("quote", ""): "if quotes are plain characters and each line is a row",
}
_SHOWN_BYTES = 60


class UncertainQuotes(BadInput):
    """Raised if the quotes of a file cannot be read, or can be read in two ways.

    ``settings`` are those of a source, by name and value, with which the rows can be read.
    """

    def __init__(self, fault: str, settings: Sequence[tuple[str, str]], *, as_flags: bool = False) -> None:
        written = [f"--{name}={quote(value)}" if as_flags else f"{name}={value!r}" for name, value in settings]
        each = ", or ".join(f"{text} {_WHEN[setting]}" for text, setting in zip(written, settings, strict=True))
        give = f"give {'' if as_flags else 'the source '}{each}"
        super().__init__(f"{fault}; {give if settings else 'double a quote within quotes, or correct the row'}")
        self.fault, self.settings = fault, settings


class RowCutter:
    """Cuts the text of a file into whole rows, and checks their quotes.

    Args:
        name: Name of the file, for messages.
        source: Source of the file.
    """

    def __init__(self, name: str, source: Source) -> None:
        self._name, self._source = name, source
        self._lines = 0
        self._widths: set[int] = set()
        """Numbers of delimiters that lines have, quoted or not."""
        self._of_several_lines = ""
        self._backslash = ""
        self._backslash_is_plain = False

    def end_of_rows(self, text: bytes) -> int:
        """Returns the end of the last whole row, or 0; quoted newlines do not end a row.

        Raises:
            UncertainQuotes: the quotes of these rows cannot be read, or can be read in two ways.
        """
        end = text.rfind(b"\n") + 1
        if (mark := quote_of(self._source).encode()) and text.find(mark, 0, end) >= 0:
            rows = text[:end]
            if not (is_strict := _is_strict(rows, self._source)):
                end = _matched(self._source, "rows", text)
                rows = text[:end]
                is_strict = _is_strict(rows, self._source)
            self._check(rows, is_strict)
        self._lines += text.count(b"\n", 0, end)
        return end

    def check_end(self, rest: bytes) -> None:
        """Checks what remains after the last whole row of a file.

        Raises:
            UncertainQuotes: a quote is open, or the lines of a value may be rows.
        """
        if rest:
            raise self._refused(rest, 0, f"a quote is open at the end, in the row that begins with {_shown(rest)}")
        if self._of_several_lines and len(self._widths) == 1:
            raise UncertainQuotes(self._of_several_lines, [("quote", '"'), ("quote", "")])

    def _check(self, rows: bytes, is_strict: bool) -> None:
        source = self._source
        if not is_strict and (start := _matched(source, "readable", rows)) < len(rows):
            line = rows[start:].partition(b"\n")[0]
            raise self._refused(rows, start, f"the quotes of {_shown(line)} cannot be read")
        if source.escape is None and not self._backslash_is_plain and (self._backslash or b"\\" in rows):
            self._check_backslashes(rows, is_strict)
        if source.quote is None and not escape_of(source) and len(self._widths) < 2:
            self._widths |= _widths(rows, source.delimiter)
            if not self._of_several_lines and (not is_strict or _has_quoted_newline(rows, source)):
                start = _matched(source, "of_one_line", rows)
                why = f"{_shown(rows[start:])} may be one value of several lines, or several rows"
                self._of_several_lines = self._at(rows, start, why) if start < len(rows) else ""

    def _check_backslashes(self, rows: bytes, is_strict: bool) -> None:
        """Checks whether escaped quotes are another reading, of rows that can be read without them."""
        source = self._source
        escaped_quote = f"{_BACKSLASH}{quote_of(source)}".encode()
        has_escaped_quote = escaped_quote in rows
        start = rows.find(escaped_quote if has_escaped_quote else _BACKSLASH.encode() * 2)
        line = rows[rows.rfind(b"\n", 0, start) + 1 :].partition(b"\n")[0]
        why = self._at(rows, start, f"the backslashes of {_shown(line)} may be escapes, or not")
        if has_escaped_quote:
            self._backslash = self._backslash or why
        settings = [("escape", _BACKSLASH), ("escape", "")]
        if self._backslash and not is_strict:
            raise UncertainQuotes(self._backslash, settings)
        # Other escapes than those of quotes and backslashes count only if there are escaped quotes.
        end, is_open = _end_of_escaped(rows, source, any_escape=has_escaped_quote)
        if end == len(rows) and not is_open and with_doubled_quotes(rows, replace(source, escape=_BACKSLASH)) != rows:
            raise UncertainQuotes(why, settings)
        self._backslash_is_plain = has_escaped_quote and end < len(rows)

    def _refused(self, rows: bytes, start: int, why: str) -> UncertainQuotes:
        return UncertainQuotes(self._at(rows, start, why), other_readings(rows, self._source))

    def _at(self, rows: bytes, start: int, why: str) -> str:
        line = self._lines + rows.count(b"\n", 0, start) + 1
        return f"{self._name}, line {line}: {why}"


def quote_of(source: Source) -> str:
    """Returns the quote of a source; empty if quotes are plain characters."""
    return '"' if source.quote is None else source.quote


def escape_of(source: Source) -> str:
    """Returns the character before a quote within quotes; empty if it is a quote, too."""
    return "" if source.escape in (None, quote_of(source)) else source.escape


def other_readings(rows: bytes, source: Source) -> list[tuple[str, str]]:
    """Returns other settings than the source's with which rows can be read."""
    mark, settings = quote_of(source).encode(), []
    if mark and not escape_of(source) and _BACKSLASH.encode() + mark in rows:
        settings += [("escape", _BACKSLASH)] if _end_of_escaped(rows, source) == (len(rows), False) else []
    if mark and mark in rows and len(_widths(rows, source.delimiter)) == 1:
        settings.append(("quote", ""))
    return settings


def end_of_first_row(rows: bytes, source: Source) -> int:
    """Returns the end of the first of rows from :func:`with_doubled_quotes`."""
    if not quote_of(source):
        return rows.find(b"\n") + 1
    row = _patterns(source.delimiter, quote_of(source), "")["row"].match(rows)
    return row.end() if row else 0


def without_quoted(rows: bytes, source: Source) -> bytes:
    """Returns rows from :func:`with_doubled_quotes` without the text within quotes."""
    mark = re.escape(quote_of(source).encode())
    return re.sub(mark + b"[^" + mark + b"]*+" + mark, b"", rows) if mark else rows


def with_doubled_quotes(rows: bytes, source: Source) -> bytes:
    """Returns rows without escapes, which Arrow would also read outside of quotes."""
    escape, mark = escape_of(source).encode(), quote_of(source).encode()
    if not escape or escape not in rows:
        return rows
    pair = re.compile(re.escape(escape) + b"([" + re.escape(escape + mark) + b"])")

    def doubled(value: re.Match[bytes]) -> bytes:
        return pair.sub(lambda found: mark * 2 if found[1] == mark else escape, value[0])

    return _patterns(source.delimiter, mark.decode(), escape.decode())["value"].sub(doubled, rows)


def with_returns(rows: bytes, source: Source) -> bytes:
    """Returns rows from :func:`with_doubled_quotes` with carriage returns in place of newlines within quotes."""
    mark = quote_of(source)
    if not mark or mark.encode() not in rows:
        return rows
    return _patterns(source.delimiter, mark, "")["value"].sub(lambda value: value[0].replace(b"\n", b"\r"), rows)


@lru_cache
def _patterns(delimiter: str, quote: str, escape: str) -> dict[str, re.Pattern[bytes]]:
    """Returns the patterns of a CSV format. All quantifiers are possessive: backtracking would take memory."""
    d, q, e = re.escape(delimiter), re.escape(quote), re.escape(escape)
    within = f"{q}{q}|{e}." if e else q + q
    value = rf"{q}(?:[^{q}{e}]++|{within})*+{q}"
    plain, rest, ends = rf"[^{q}\r\n{d}]", rf"[^\r\n{d}]*+", rf"(?=[\r\n{d}])"
    row = rf"(?:{plain}{rest}|[\r{d}]|{value}{rest})*+\n"
    # An escaped quote in a value without quotes can be read in two ways.
    sure = rf"(?:{plain}(?<!{e})|{e}(?!{q}))(?:[^{e}\r\n{d}]++|{e}(?!{q}))*+" if e else plain + rest
    patterns = {
        "value": rf"(?<![^\r\n{d}]){value}",
        "row": row,
        "rows": rf"(?:{row})*+",
        "readable": rf"(?:{sure}|[\r\n{d}]|{value}{ends})*+",
        "of_one_line": rf"(?:{plain}{rest}|[\r\n{d}]|{q}(?:[^{q}{e}\n]++|{within})*+{q}{rest})*+",
        **{
            name: rf"(?:{plain}++|[\r\n{d}]|{q}(?:[^{q}\\]++|{pair})*+{q}{ends})*+({q}(?:[^{q}\\]++|{pair})*+\Z)?+"
            for name, pair in (("any escape", r"\\."), ("escaped", rf"\\[{q}\\]"))
        },
    }
    return {name: re.compile(pattern.encode(), re.DOTALL) for name, pattern in patterns.items()}


def _matched(source: Source, pattern: str, rows: bytes) -> int:
    """Returns how far a pattern matches; all match the empty text."""
    match = _patterns(source.delimiter, quote_of(source), escape_of(source))[pattern].match(rows)
    return match.end() if match else 0


def _end_of_escaped(rows: bytes, source: Source, *, any_escape: bool = True) -> tuple[int, bool]:
    """Returns how far rows can be read with escaped quotes, doubled ones aside, and whether a quote is then open."""
    pattern = "any escape" if any_escape else "escaped"
    match = _patterns(source.delimiter, quote_of(source), "")[pattern].match(rows)
    return (match.end(), match[1] is not None) if match else (0, False)


def _shown(text: bytes) -> str:
    return repr(text[:_SHOWN_BYTES])


def _is_strict(rows: bytes, source: Source) -> bool:
    """Returns whether each quote opens or closes a value, or is doubled; much faster than a pattern."""
    if escape_of(source):
        return False
    text = np.frombuffer(rows, np.uint8)
    quotes = np.flatnonzero(text == ord(quote_of(source)))
    beside = np.isin(np.arange(256), list(f"\r\n{source.delimiter}{quote_of(source)}".encode()))
    return bool(
        len(quotes) % 2 == 0
        and beside[text[quotes[::2] - 1]].all()  # index -1 is the last byte, a newline
        and beside[text[quotes[1::2] + 1]].all()
    )


def _has_quoted_newline(rows: bytes, source: Source) -> bool:
    """Returns whether a newline is within quotes, for rows with strict quotes."""
    text = np.frombuffer(rows, np.uint8)
    quotes = np.flatnonzero(text == ord(quote_of(source)))
    return bool((np.searchsorted(quotes, np.flatnonzero(text == ord("\n"))) % 2).any())


def _widths(rows: bytes, delimiter: str) -> set[int]:
    """Returns the least and the greatest number of delimiters, quoted or not, of a line that is not blank."""
    text = np.frombuffer(rows, np.uint8)
    newlines = np.flatnonzero(text == ord("\n"))
    lengths = np.diff(newlines, prepend=-1) - 1 - (text[newlines - 1] == ord("\r"))
    delimiters = np.searchsorted(np.flatnonzero(text == ord(delimiter)), newlines)
    widths = np.diff(delimiters, prepend=0)[lengths > 0]
    return {int(widths.min()), int(widths.max())} if len(widths) else set()
