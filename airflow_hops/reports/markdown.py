"""A report in GitHub Flavored Markdown (https://github.github.com/gfm/).

What people and data have named may hold Markdown and HTML: it is text here, makes no tag, and no link.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from airflow_hops.reports.page import FOOTER, Chart, Image, Report, Table, cell

_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
_LINK = re.compile(r"://|www\.|@|mailto:|xmpp:", re.IGNORECASE)
"""Text that some renderers make a link or a mention of."""
_LINE_START = re.compile(r"^(#|[-+=:](?=[\s=:-]|$)|\d+(?=[.)]))")


def markdown(report: Report) -> str:
    """The report as Markdown; drawings are tables of their points."""
    parts = [f"# {_inline(report.title)}", _inline(report.subtitle)]
    for section in report.sections:
        if section.blocks:
            parts.append(f"## {_inline(section.title)}")
            parts += filter(None, map(_block, section.blocks))
    return "\n\n".join([*parts, _inline(FOOTER)]) + "\n"


def _block(block: Table | Chart | Image | str) -> str:
    if isinstance(block, Table):
        return _table(block.rows, block.columns, block.caption)
    if isinstance(block, Image):
        return f"{_inline(block.caption)} (a picture, which is in the report's HTML)"
    if isinstance(block, Chart):
        rows = [(name, *point) for name, line in block.series.items() for point in line]
        return _table(rows, ("Line", "x", "y"), block.caption) if rows else _inline(f"{block.caption}: no values")
    paragraphs = re.split(r"\n\s*\n", block.strip())
    return "\n\n".join("\\\n".join(_line(line) for line in text.splitlines()) for text in paragraphs)


def _table(rows: Sequence[Sequence[Any]], columns: Sequence[str], caption: str) -> str:
    width = max([len(columns), *map(len, rows)])
    heads = [_inline(name) for name in (*columns, *[""] * (width - len(columns)))]
    lines = [heads, ["---"] * width, *[[_inline(cell(value)) for value in row] for row in rows]]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{_inline(caption)}**\n\n{table}" if caption.strip() else table


def _line(text: str) -> str:
    escaped = _inline(text)
    return _LINE_START.sub(lambda found: f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}", escaped)


def _inline(text: str) -> str:
    """Text in one line, of which nothing is markup, nor the end of a table's cell."""
    return " ".join(_code(word) if _LINK.search(word) else _escape(word) for word in text.split())


def _escape(word: str) -> str:
    word = _MARKS.sub(lambda found: f"\\{found[0]}", word)
    return word.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code(word: str) -> str:
    """Code spans, in which nothing is a link."""
    spans = []
    for part in word.split("|"):
        fence = "`" * (1 + max(map(len, re.findall("`+", part)), default=0))
        space = " " if "`" in part else ""
        spans.append(f"{fence}{space}{part}{space}{fence}" if part else "")
    return "\\|".join(spans)
