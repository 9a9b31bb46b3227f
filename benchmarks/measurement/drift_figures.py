"""Figures, marks and tables of the benchmark of power and false alarms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measurement.buildings import lines_of
from benchmarks.measurement.drift_shapes import CHANGES, SHAPES
from benchmarks.measurement.drift_windows import ANY_CHANGE, WITH_SCHEMA
from benchmarks.measurement.statistics_figures import Mark

PEER = "Evidently"
WAYS = (WITH_SCHEMA, ANY_CHANGE, PEER)
COMPARED_ROWS = 1_500
FAR = 0.1
"""Distance of the populations from which every change must be found; it is rounded to two digits."""

Answers = Sequence[tuple[Mapping[str, Any], Mapping[str, Sequence[str]]]]
"""Jobs of the plan with the drifted features that each way has found."""


def false_alarms_of(answers: Answers) -> list[dict[str, Any]]:
    """Returns reports, and those with a drifted feature, of unchanged windows by way and size."""
    cells = []
    for way in WAYS:
        for rows in dict.fromkeys(job["rows"] for job, _ in answers):
            called = [by[way] for job, by in answers if way in by and job["rows"] == rows and not job["changed"]]
            if called:
                features = Counter(name for names in called for name in names)
                share = round(sum(map(bool, called)) / len(called), 4)
                cell = {"way": way, "rows": rows, "reports": len(called), "share": share}
                cells.append({**cell, "features": dict(features.most_common())})
    return cells


def power_of(answers: Answers, distances: Mapping[tuple[str, str], float]) -> list[dict[str, Any]]:
    """Returns windows, and those in which the changed feature is called drifted, by way, size, shape and change."""
    windows: Counter[tuple[Any, ...]] = Counter()
    drifted: Counter[tuple[Any, ...]] = Counter()
    for job, by in answers:
        for way, names in by.items():
            for shape, change in job["changed"].items():
                if way == PEER and shape.startswith(("lists", "vectors")):
                    continue
                cell = (way, job["rows"], shape, change)
                windows[cell] += 1
                drifted[cell] += shape in names
    return [
        {
            "way": way,
            "rows": rows,
            "shape": shape,
            "change": change,
            "distance": distances.get((shape, change), 0.0),
            "windows": count,
            "power": round(drifted[way, rows, shape, change] / count, 4),
        }
        for (way, rows, shape, change), count in windows.items()
    ]


def is_far(cell: Mapping[str, Any]) -> bool:
    """Whether the change must always be found."""
    return round(cell["distance"], 2) >= FAR


def compared_cells(figures: Mapping[str, Any], way: str) -> list[Mapping[str, Any]]:
    """Returns the cells of changes, not of harmless ones, at the compared size."""
    cells = (cell for cell in figures["power"] if cell["way"] == way and cell["rows"] == COMPARED_ROWS)
    return [cell for cell in cells if cell["change"] in CHANGES]


def missed_of(figures: Mapping[str, Any], way: str) -> list[Mapping[str, Any]]:
    """Returns the cells that should have a power of 1 and have less."""
    return [cell for cell in compared_cells(figures, way) if is_far(cell) and cell["power"] < 1]


def below_of(figures: Mapping[str, Any], earlier: Mapping[str, Any], way: str) -> list[Mapping[str, Any]]:
    """Returns the cells of the compared size whose power is below that of earlier figures."""
    powers = {(cell["shape"], cell["change"]): cell["power"] for cell in compared_cells(earlier, way)}
    cells = [
        {**cell, "earlier": powers.get((cell["shape"], cell["change"]), 0.0)} for cell in compared_cells(figures, way)
    ]
    return [cell for cell in cells if cell["power"] < cell["earlier"]]


def marks_of(figures: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> list[Mark]:
    """Returns the marks of this project's figures."""
    marks = []
    for cell in figures["false_alarms"]:
        if cell["way"] != PEER:
            name = f"false alarms of {cell['reports']} reports, {cell['rows']:,} rows, {cell['way']}"
            marks.append(Mark(name, cell["share"], 0.01, False))
    for way in (WITH_SCHEMA, ANY_CHANGE):
        far = sum(map(is_far, compared_cells(figures, way)))
        name = f"changes at a distance of {FAR} or more, power below 1, of {far}, {way}"
        marks.append(Mark(name, len(missed_of(figures, way)), 0, False))
        harmless = [c for c in figures["power"] if c["way"] == way and c["change"] not in CHANGES]
        marks.append(
            Mark(f"harmless changes called drift, {way}", max((c["power"] for c in harmless), default=0), 0.05, False)
        )
        below = None if earlier is None else len(below_of(figures, earlier, way))
        marks.append(Mark(f"changes with less power than in earlier figures, {way}", below, 0, False))
    return marks


def mean_power(cells: Iterable[Mapping[str, Any]]) -> float | None:
    """Returns the mean power of cells, None if there are none."""
    powers = [cell["power"] for cell in cells]
    return round(sum(powers) / len(powers), 3) if powers else None


def print_power(figures: Mapping[str, Any], way: str, console: Console) -> None:
    """Prints shapes by changes: the power at the compared size, marked where it should be 1."""
    cells = {(cell["shape"], cell["change"]): cell for cell in compared_cells(figures, way)}
    title = f"Power at {COMPARED_ROWS:,} rows, {way}; ! where the populations' distance is at least {FAR}"
    table = Table("shape", *(f"{change}" for change in CHANGES), title=title, title_justify="left", padding=(0, 0))
    for shape in SHAPES:
        row = [cells.get((shape, change)) for change in CHANGES]
        if any(row):
            table.add_row(shape, *(_power_text(cell) for cell in row))
    console.print(table)


def _power_text(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return ""
    if not is_far(cell):
        return f"{cell['power']:.2f}"
    return f"[bold red]{cell['power']:.2f}![/]" if cell["power"] < 1 else "1.00!"


def print_summary(figures: Mapping[str, Any], console: Console) -> None:
    """Prints the mean power of each way by change, harmless ones included, and false alarms by size."""
    table = Table("change", *WAYS, title=f"Mean power at {COMPARED_ROWS:,} rows by change", title_justify="left")
    cells = [cell for cell in figures["power"] if cell["rows"] == COMPARED_ROWS]
    for change in dict.fromkeys(cell["change"] for cell in cells):
        means = [mean_power(c for c in cells if c["change"] == change and c["way"] == way) for way in WAYS]
        table.add_row(change, *("" if mean is None else f"{mean:.2f}" for mean in means))
    console.print(table)
    table = Table("false alarms", "rows", "reports", "share", "features", title_justify="left")
    for cell in figures["false_alarms"]:
        features = ", ".join(f"{name}: {count}" for name, count in cell["features"].items())
        table.add_row(cell["way"], f"{cell['rows']:,}", str(cell["reports"]), f"{cell['share']:.1%}", features)
    console.print(table)


def print_buildings(by_way: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Prints how often unchanged weeks are called drifted, and how well onset and duration are seen."""
    table = Table("weeks against a year", "unchanged called drift", "drift", "days", "found", "late", "too long")
    for way, figures in by_way.items():
        for number, line in enumerate(lines_of(figures)):
            table.add_row("" if number else way, "" if number else f"{figures['false_alarms']:.0%}", *line)
    console.print(table)
