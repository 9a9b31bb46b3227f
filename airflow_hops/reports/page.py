"""The parts of a report, and its HTML: no script, nothing that is loaded, so that it opens anywhere and runs nothing.

All text is escaped by Jinja; the document itself forbids scripts and requests, which holds where no server says so.
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
    """Rows of values; the first of each names it."""

    rows: Sequence[Sequence[Any]]
    columns: Sequence[str] = ()
    caption: str = ""

    @classmethod
    def of(cls, facts: Mapping[str, Any], caption: str = "") -> Table:
        """Facts by name, less those that are not known."""
        return cls([(name, value) for name, value in facts.items() if value not in (None, "", (), [])], (), caption)


@dataclass(frozen=True)
class Chart:
    """Points of each series, joined by lines, over axes from the lowest to the highest of all.

    Attributes:
        series: Points ``(x, y)`` by name.
        caption: What is drawn.
        diagonal: Whether to draw where x equals y, dashed.
    """

    series: Mapping[str, Sequence[tuple[float, float]]]
    caption: str
    diagonal: bool = False

    @property
    def lines(self) -> dict[str, list[tuple[float, float]]]:
        """The points that can be drawn, by series."""
        return {name: [point for point in line if all(map(math.isfinite, point))] for name, line in self.series.items()}

    @property
    def bounds(self) -> tuple[float, float, float, float] | None:
        """The least and the greatest x, and the least and the greatest y; None without a point."""
        points = [point for line in self.lines.values() for point in line]
        if not points:
            return None
        xs, ys = ([*axis] for axis in zip(*points, strict=True))
        if self.diagonal:
            xs = ys = [*xs, *ys]
        return min(xs), max(xs), min(ys), max(ys)


@dataclass(frozen=True)
class Image:
    """A picture as a ``data:`` address."""

    image: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of a report: tables, drawings, and text as it was written."""

    title: str
    blocks: Sequence[Table | Chart | Image | str]


@dataclass(frozen=True)
class Report:
    """A report.

    Attributes:
        title: Its heading, and the name of its file.
        about: What it is of.
        sections: Its parts; one without blocks is left out.
        at: When it was made.
    """

    title: str
    about: str
    sections: Sequence[Section]
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def subtitle(self) -> str:
        """Returns the subject and time of the report."""
        return f"{self.about} · {self.at.isoformat(sep=' ', timespec='minutes').removesuffix('+00:00')} UTC"

    def html(self) -> str:
        """One HTML file that needs nothing else."""
        folder = FileSystemLoader(Path(__file__).parent)
        environment = Environment(loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True)
        environment.filters["cell"] = cell
        template = environment.get_template("report.html")
        sections = [section for section in self.sections if section.blocks]
        return template.render(title=self.title, subtitle=self.subtitle, sections=sections, footer=FOOTER)


def cell(value: Any) -> str:
    """A value as it stands in a table."""
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
