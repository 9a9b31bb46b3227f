"""The parts of a report and its HTML, which has no scripts and loads nothing, so it is safe to open anywhere.

Jinja escapes all text. The document's own policy forbids scripts and requests, even without a server's headers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from airflow_hops import __version__

FOOTER = f"Written by airflow-hops {__version__}."


@dataclass(frozen=True)
class Table:
    """Rows of values, of which the first is the row's name."""

    rows: Sequence[Sequence[Any]]
    columns: Sequence[str] = ()
    caption: str = ""

    @classmethod
    def of(cls, facts: Mapping[str, Any], caption: str = "") -> Table:
        """Returns a table of facts by name, without empty ones."""
        return cls([(name, value) for name, value in facts.items() if value not in (None, "", (), [])], (), caption)


@dataclass(frozen=True)
class Chart:
    """A line chart of several series, with axes that span all points.

    Attributes:
        series: Points ``(x, y)`` by name.
        diagonal: Whether to draw a dashed line where x equals y.
    """

    series: Mapping[str, Sequence[tuple[float, float]]]
    caption: str
    diagonal: bool = False

    @property
    def lines(self) -> dict[str, list[tuple[float, float]]]:
        """Finite points by series."""
        return {name: [point for point in line if all(map(math.isfinite, point))] for name, line in self.series.items()}

    @property
    def bounds(self) -> tuple[float, float, float, float] | None:
        """Least and greatest x, least and greatest y; None without points."""
        points = [point for line in self.lines.values() for point in line]
        if not points:
            return None
        xs, ys = ([*axis] for axis in zip(*points, strict=True))
        if self.diagonal:
            xs = ys = [*xs, *ys]
        return min(xs), max(xs), min(ys), max(ys)


@dataclass(frozen=True)
class Image:
    """An image as a ``data:`` URL."""

    image: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of a report: tables, charts, images and plain text."""

    title: str
    blocks: Sequence[Table | Chart | Image | str]


@dataclass(frozen=True)
class Report:
    """A report.

    Attributes:
        title: Heading, and file name.
        about: Subject.
        sections: Sections; empty ones are omitted.
    """

    title: str
    about: str
    sections: Sequence[Section]
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def subtitle(self) -> str:
        """Subject and time of the report."""
        return f"{self.about} · {self.at.isoformat(sep=' ', timespec='minutes').removesuffix('+00:00')} UTC"

    def html(self) -> str:
        """Returns the report as one self-contained HTML file."""
        folder = FileSystemLoader(Path(__file__).parent)
        environment = Environment(loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True)
        environment.filters["cell"] = cell
        template = environment.get_template("report.html")
        sections = [section for section in self.sections if section.blocks]
        return template.render(title=self.title, subtitle=self.subtitle, sections=sections, footer=FOOTER)


def cell(value: Any) -> str:
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


_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
_LINK = re.compile(r"://|www\.|@|mailto:|xmpp:", re.IGNORECASE)
"""Text that some renderers turn into links or mentions."""
_LINE_START = re.compile(r"^(#|[-+=:](?=[\s=:-]|$)|\d+(?=[.)]))")


def markdown(report: Report) -> str:
    """Returns the report as Markdown; charts become tables of their points."""
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
        return f"{_inline(block.caption)} (an image, see the report's HTML)"
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
    """Returns text as one line without markup and table separators."""
    return " ".join(_code(word) if _LINK.search(word) else _escape(word) for word in text.split())


def _escape(word: str) -> str:
    word = _MARKS.sub(lambda found: f"\\{found[0]}", word)
    return word.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code(word: str) -> str:
    """Returns a word as code spans, in which renderers create no links."""
    spans = []
    for part in word.split("|"):
        fence = "`" * (1 + max(map(len, re.findall("`+", part)), default=0))
        space = " " if "`" in part else ""
        spans.append(f"{fence}{space}{part}{space}{fence}" if part else "")
    return "\\|".join(spans)
