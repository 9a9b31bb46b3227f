"""The parts of a report, and its HTML: no script, nothing that is loaded, so that it opens anywhere and runs nothing.

All text is escaped by Jinja; the document itself forbids scripts and requests, which holds where no server says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, Template
from markupsafe import Markup, escape

from airflow_hops import __version__

FOOTER = f"Written by airflow-hops {__version__}."
_COLOURS = ("#2f6fdb", "#d9480f", "#2b8a3e", "#9c36b5", "#c2255c", "#0b7285", "#8d6e00", "#6b7280")
_WIDTH, _HEIGHT, _LEFT, _FOOT = 640, 240, 60, 24


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
    """A drawing."""

    svg: Markup
    caption: str
    series: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """Its points ``(x, y)`` by name, for readers without pictures."""


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
        """What it is of, and when it was made."""
        return f"{self.about} · {self.at.isoformat(sep=' ', timespec='minutes').removesuffix('+00:00')} UTC"

    def html(self) -> str:
        """One HTML file that needs nothing else."""
        sections = [section for section in self.sections if section.blocks]
        return _template().render(title=self.title, subtitle=self.subtitle, sections=sections, footer=FOOTER)


def draw_lines(series: Mapping[str, Sequence[tuple[float, float]]], caption: str, *, diagonal: bool = False) -> Chart:
    """Points of each series, joined by lines, over axes from the lowest to the highest of all.

    Args:
        series: Points ``(x, y)`` by name.
        caption: What is drawn.
        diagonal: Whether to draw where x equals y, dashed.
    """
    points = [point for line in series.values() for point in line if all(map(math.isfinite, point))]
    if not points:
        return Chart(Markup(""), f"{caption}: no values")
    (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))
    if diagonal:
        left = low = min(left, low)
        right = high = max(right, high)

    def place(x: float, y: float) -> str:
        across = _LEFT + (x - left) / ((right - left) or 1.0) * (_WIDTH - _LEFT - 10)
        return f"{across:.1f},{_HEIGHT - _FOOT - (y - low) / ((high - low) or 1.0) * (_HEIGHT - _FOOT - 30):.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-size="11">']
    parts.append(f"<title>{escape(caption)}</title>")
    if diagonal:
        ends = f"{place(left, left)} {place(right, right)}"
        parts.append(f'<polyline points="{ends}" fill="none" stroke="#888" stroke-dasharray="4"/>')
    for number, (name, line) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        shown = [point for point in line if all(map(math.isfinite, point))]
        where = " ".join(place(*point) for point in shown)
        parts.append(f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        if len(shown) < 20:
            parts += [_dot(place(*point), colour) for point in shown]
        x = _LEFT + number % 4 * 145
        parts.append(f'<text x="{x}" y="{11 + number // 4 * 13}" style="fill:{colour}">{escape(name[:22])}</text>')
    foot = _HEIGHT - 6
    parts.append(f'<text x="{_LEFT}" y="{foot}">{cell(left)}</text>')
    parts.append(f'<text x="{_WIDTH - 10}" y="{foot}" text-anchor="end">{cell(right)}</text>')
    parts.append(f'<text x="{_LEFT - 6}" y="{_HEIGHT - _FOOT}" text-anchor="end">{cell(low)}</text>')
    parts.append(f'<text x="{_LEFT - 6}" y="38" text-anchor="end">{cell(high)}</text></svg>')
    return Chart(Markup("".join(parts)), caption, series)


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


def _dot(place: str, colour: str) -> str:
    x, y = place.split(",")
    return f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["cell"] = cell
    return environment.get_template("report.html")
