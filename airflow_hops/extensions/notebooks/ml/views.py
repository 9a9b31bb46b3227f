"""Shows data in a notebook similarly to Facets (https://pair-code.github.io/facets/): self-contained HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

_WIDTH, _HEIGHT = 160, 36
_STYLE = (
    "border-collapse:collapse;font:13px system-ui,sans-serif",
    "padding:4px 10px;border-bottom:1px solid #ccc6;text-align:right;vertical-align:middle",
)
MAX_DOTS = 2000
"""Maximum rows in :func:`dive`."""


@dataclass(frozen=True)
class View:
    """HTML view in a notebook."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


def overview(summary: Mapping[str, Any]) -> View:
    """Shows features as a table: shares of missing values and zeros, figures, and a drawing of the distribution.

    Args:
        summary: Result of :func:`airflow_hops.ml.statistics.summary.summarize`.
    """
    heads = ("feature", "type", "missing", "zeros", "mean or unique", "std", "min", "median", "max or top", "")
    rows = [_row(name, feature, summary["rows"]) for name, feature in summary["features"].items()]
    table, cell = _STYLE
    lines = [f"<tr>{''.join(f'<th style={cell!r}>{head}</th>' for head in heads)}</tr>"]
    lines += [f"<tr>{''.join(f'<td style={cell!r}>{value}</td>' for value in row)}</tr>" for row in rows]
    caption = f"{summary['rows']:,} rows, {len(rows)} features"
    return View(f"<table style={table!r}><caption>{caption}</caption>{''.join(lines)}</table>")


def dive(columns: Mapping[str, Sequence[object]], rows: int) -> View:
    """Shows rows as dots, placed and coloured by chosen columns, with their values.

    Args:
        columns: Numbers or texts by column, None if missing; all of one length.
        rows: Number of rows before sampling.
    """
    page = Path(__file__).with_name("dive.html").read_text()
    # No value may end the script or the frame's attribute.
    data = json.dumps({"columns": columns, "rows": rows}, default=str).replace("<", "\\u003c")
    source = escape(page.replace("DATA", data), quote=True)
    frame = f'<iframe sandbox="allow-scripts" style="width:100%;height:520px;border:0" srcdoc="{source}"></iframe>'
    return View(frame)


def _row(name: str, feature: Mapping[str, Any], rows: int) -> tuple[str, ...]:
    share = feature["missing"] / rows if rows else 0.0
    missing = f"<span style='color:#c92a2a'>{share:.1%}</span>" if share else "0%"
    if "mean" in feature:
        zeros = f"{feature.get('zeros', 0) / rows:.1%}" if rows else ""
        figures = (_number(feature.get(key)) for key in ("mean", "std", "min", "median", "max"))
        counts = [count for _, _, count in feature.get("histogram", [])]
        return (escape(name), feature["type"], missing, zeros, *figures, _bars(counts))
    top = feature.get("top_values", [])
    first = escape(f"{top[0][0]} ({top[0][1]:,.0f})") if top else ""
    unique = _number(feature.get("unique"))
    drawn = _bars([count for _, count in top])
    return (escape(name), feature["type"], missing, "", unique, "", "", "", first, drawn)


def _bars(counts: Sequence[Any]) -> str:
    numbers = [float(count) for count in counts]
    highest = max(numbers, default=0.0)
    if not highest:
        return ""
    width = _WIDTH / len(numbers)
    bars = "".join(
        f"<rect x='{i * width:.1f}' y='{_HEIGHT * (1 - n / highest):.1f}' width='{max(width - 1, 1):.1f}' "
        f"height='{_HEIGHT * n / highest:.1f}'><title>{n:,.0f}</title></rect>"
        for i, n in enumerate(numbers)
    )
    return f"<svg width='{_WIDTH}' height='{_HEIGHT}' fill='#2f6fdb' role='img'>{bars}</svg>"


def _number(value: object) -> str:
    return "" if value is None else f"{value:,.5g}" if isinstance(value, int | float) else escape(str(value))
