"""Draws both histograms of each drifted feature as a self-contained SVG."""

from __future__ import annotations

from html import escape
from typing import Any

from airflow_hops.ml.distances.report import FeatureSkew, SkewReport

_WIDTH, _HEIGHT, _PLOT, _FOOT = 320, 170, 100, 142
_COLUMNS, _MOST = 3, 12
_VALUES = 12
_COLOURS = ("#8a94a6", "#d9480f")


def draw(report: SkewReport) -> str:
    """Draws up to twelve drifted features, the most moved first; without drift, a line of text."""
    names = report.drifted[:_MOST]
    rows = max(1, -(-len(names) // _COLUMNS))
    width, height = _WIDTH * _COLUMNS, 30 + _HEIGHT * rows
    title = f"{report.verdict}: {report.rows_current:,} rows (orange) against {report.rows_reference:,} (grey)"
    if not names:
        title += "; no feature has drifted"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
    ]
    for number, name in enumerate(names):
        x, y = _WIDTH * (number % _COLUMNS), 30 + _HEIGHT * (number // _COLUMNS)
        parts.append(f'<g transform="translate({x + 10},{y})">{_panel(name, report.features[name])}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(name: str, skew: FeatureSkew) -> str:
    facts = []
    if skew.score is not None and skew.threshold is not None:
        facts.append(f"{skew.measure} {skew.score:.3g} (threshold {skew.threshold:.3g})")
    if max(skew.missing_reference, skew.missing_current) >= 0.005:
        facts.append(f"missing {100 * skew.missing_reference:.0f}% → {100 * skew.missing_current:.0f}%")
    lines = [
        f'<text y="14" font-size="13" font-weight="bold">{escape(name)}: {escape(str(skew.cause))}</text>',
        f'<text y="30" font-size="10">{escape(", ".join(facts))}</text>',
    ]
    buckets = skew.common_histogram
    if buckets:
        lines += _stairs(buckets) if len(buckets[0]) == 4 else _bars(buckets)
    return "".join(lines)


def _stairs(buckets: list[list[Any]]) -> list[str]:
    """Draws shares of numbers by bucket, as a staircase for each side."""
    lowest, highest = buckets[0][0], buckets[-1][1]
    scale = (_WIDTH - 20) / ((highest - lowest) or 1.0)
    peak = max(max(bucket[2:]) for bucket in buckets) or 1.0
    lines = []
    for colour, place in zip(_COLOURS, (2, 3), strict=True):
        points = [
            f"{(bound - lowest) * scale:.1f},{_FOOT - _PLOT * bucket[place] / peak:.1f}"
            for bucket in buckets
            for bound in bucket[:2]
        ]
        lines.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    lines.append(f'<text y="{_FOOT + 14}" font-size="10">{lowest:.4g}</text>')
    lines.append(f'<text x="{_WIDTH - 20}" y="{_FOOT + 14}" font-size="10" text-anchor="end">{highest:.4g}</text>')
    return lines


def _bars(buckets: list[list[Any]]) -> list[str]:
    """Draws shares of the values that are most frequent on either side."""
    frequent = sorted(buckets, key=lambda bucket: -max(bucket[1:]))[:_VALUES]
    peak = max(max(bucket[1:]) for bucket in frequent) or 1.0
    step = (_WIDTH - 20) / len(frequent)
    lines = []
    for number, (value, *shares) in enumerate(frequent):
        for side, (colour, share) in enumerate(zip(_COLOURS, shares, strict=True)):
            height = _PLOT * share / peak
            box = f'x="{step * (number + 0.4 * side):.1f}" y="{_FOOT - height:.1f}" width="{0.4 * step:.1f}"'
            lines.append(f'<rect {box} height="{height:.1f}" fill="{colour}"/>')
        label = escape(str(value)[: max(3, int(step / 6))])
        lines.append(f'<text x="{step * number:.1f}" y="{_FOOT + 14}" font-size="10">{label}</text>')
    return lines
