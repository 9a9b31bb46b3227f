"""Markdown (GitHub's) in which nothing that people or data have named becomes markup or a link."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
_LINK = re.compile(r"://|www\.|@|mailto:|xmpp:", re.IGNORECASE)
"""Text that some renderers turn into links or mentions."""
_LINE_START = re.compile(r"^(#|[-+=:](?=[\s=:-]|$)|\d+(?=[.)]))")


def table(rows: Sequence[Sequence[object]], columns: Sequence[str] = (), caption: str = "") -> str:
    """Returns a table; the first value of a row is its name."""
    width = max([len(columns), *map(len, rows)])
    heads = [inline(name) for name in (*columns, *[""] * (width - len(columns)))]
    lines = [heads, ["---"] * width, *[[inline(cell(value)) for value in row] for row in rows]]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{inline(caption)}**\n\n{text}" if caption.strip() else text


def facts(values: Mapping[str, object], caption: str = "") -> str:
    """Returns a table of values by name; missing and empty ones are "not known", empty lists "none"."""
    rows = []
    for name, value in values.items():
        unknown = "none" if isinstance(value, tuple | list | Mapping) else "not known"
        rows.append((name, unknown if value is None or value in ("", (), [], {}) else value))
    return table(rows, caption=caption)


def paragraphs(text: str) -> str:
    """Returns a text with its lines and paragraphs."""
    parts = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join("\\\n".join(_line(line) for line in part.splitlines()) for part in parts)


def inline(text: str) -> str:
    """Returns text as one line without markup and table separators."""
    return " ".join(_code(word) if _LINK.search(word) else _escape(word) for word in text.split())


def cell(value: object) -> str:
    """Formats a value for a table."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {cell(item)}" for name, item in value.items())
    return str(value)


def _line(text: str) -> str:
    escaped = inline(text)
    return _LINE_START.sub(lambda match: f"{match[0]}\\" if match[0].isdigit() else f"\\{match[0]}", escaped)


def _escape(word: str) -> str:
    word = _MARKS.sub(lambda match: f"\\{match[0]}", word)
    return word.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code(word: str) -> str:
    """Returns a word as code spans, in which renderers create no links."""
    spans = []
    for part in word.split("|"):
        fence = "`" * (1 + max(map(len, re.findall("`+", part)), default=0))
        space = " " if "`" in part else ""
        spans.append(f"{fence}{space}{part}{space}{fence}" if part else "")
    return "\\|".join(spans)
