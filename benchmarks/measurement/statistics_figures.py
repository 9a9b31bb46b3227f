"""Figures, ratios, marks and tables of the statistics benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measurement.timing import Timed

WAYS = {
    "ours": "airflow-hops",
    "spark": "airflow-hops, on Spark",
    "beam": "TFDV on Beam",
    "dataframe": "TFDV from a pandas frame in memory",
    "dataframe_all_cores": "the same, a process for each core",
    "batch": "TFDV from Arrow in memory",
    "decode": "pyarrow decodes, and no more",
    "duckdb": "DuckDB, SUMMARIZE",
    "polars": "Polars, describe",
    "evidently": "Evidently, DataDriftPreset",
}
SKEW = "skew check"
_MIB_IN_GB = 1e9 / (1 << 20)


@dataclass
class Measurements:
    """All runs.

    Attributes:
        rows: Rows of the table that is flights itself, and of the large one.
        runs: By table ("336776.csv") and way.
        memory: The run in which memory was sampled, by table and way; no time is taken from it.
        shapes: The tables by the shape of their columns ("int_10.parquet").
    """

    rows: int
    large_rows: int
    runs: dict[str, dict[str, list[Timed]]] = field(default_factory=dict)
    memory: dict[str, dict[str, Timed]] = field(default_factory=dict)
    shapes: Sequence[str] = ()

    def add(self, table: str, way: str, timed: Timed) -> None:
        """Adds a run."""
        self.runs.setdefault(table, {}).setdefault(way, []).append(timed)

    def seconds(self, table: str, *ways: str) -> float | None:
        """Median seconds of the way, of several the fastest's; None where there is none."""
        found = [_median(t.seconds for t in self.runs[table][w]) for w in ways if w in self.runs.get(table, {})]
        return min(found, default=None)


@dataclass(frozen=True)
class Mark:
    """A figure that is to be reached.

    Attributes:
        name: What it is.
        value: What was measured; None where it was not.
        mark: What is to be reached.
        at_least: Whether more is better.
        reached: Whether it was; None where it was not measured.
    """

    name: str
    value: float | None
    mark: float
    at_least: bool

    @property
    def reached(self) -> bool | None:
        """Whether it was reached."""
        if self.value is None:
            return None
        return self.value >= self.mark if self.at_least else self.value <= self.mark


def marks_of(found: Measurements) -> list[Mark]:
    """The marks, in the order of the requirements."""
    csv, parquet = f"{found.rows}.csv", f"{found.rows}.parquet"
    large_csv, large_parquet = f"{found.large_rows}.csv", f"{found.large_rows}.parquet"
    frame = ("dataframe", "dataframe_all_cores")
    marks = [Mark(f"times faster than TFDV on Beam, {csv}", _times(found, csv, "beam"), 30, True)]
    for table in (parquet, large_parquet):
        marks.append(
            Mark(f"times faster than TFDV's best from a frame, {table}", _times(found, table, *frame), 1.6, True)
        )
    for table in (csv, parquet, large_csv, large_parquet):
        floor = found.seconds(table, "decode")
        own = found.seconds(table, "ours")
        marks.append(Mark(f"times what decoding takes, {table}", _ratio(own, floor), 10, False))
    for table in found.shapes:
        best = _times(found, table, *frame, "batch", "beam")
        marks.append(Mark(f"times faster than TFDV's best, {table}", best, 1.5, True))
        floor = _ratio(found.seconds(table, "ours"), found.seconds(table, "decode"))
        marks.append(Mark(f"times what decoding takes, {table}", floor, 12, False))
    for table in (large_csv, large_parquet):
        sampled = found.memory.get(table, {}).get("ours")
        peak = round(sampled.peak_mib / _MIB_IN_GB, 3) if sampled else None
        marks.append(Mark(f"peak memory in GB, libraries included, {table}", peak, 1, False))
    fastest = found.seconds(large_parquet, "duckdb", "polars")
    ratio = _ratio(found.seconds(large_parquet, "ours"), fastest)
    marks.append(Mark(f"times what the faster of DuckDB and Polars takes, {large_parquet}", ratio, 3, False))
    small = f"{found.large_rows // 10}.parquet"
    tenth = found.seconds(small, "ours")
    marks.append(
        Mark(
            f"seconds a row, {large_parquet} over {small}",
            _ratio(found.seconds(large_parquet, "ours"), tenth * 10 if tenth else None),
            1.2,
            False,
        )
    )
    first = [timed.facts["first_s"] for timed in found.runs.get(SKEW, {}).get("ours", [])]
    marks.append(
        Mark("seconds of the skew check, the process's first", round(max(first), 3) if first else None, 2, False)
    )
    return marks


def ratios_of(found: Measurements) -> dict[str, float]:
    """How many times faster than the peers, and how many times less CPU than them; above 1 is ahead."""
    ratios = {}
    for table, runs in found.runs.items():
        subject = "skew" if table == SKEW else table
        for way in runs:
            if way not in ("ours", "decode"):
                cpu = [_median(t.cpu_s for t in runs[one]) for one in (way, "ours")]
                ratios[f"{subject}_times_faster_than_{way}"] = _times(found, table, way)
                ratios[f"{subject}_times_less_cpu_than_{way}"] = _ratio(*cpu)
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def figures_of(found: Measurements, cores: int) -> dict[str, Any]:
    """Returns the inputs of the ratios, and every single run."""
    return {
        "cores": cores,
        "seconds": {
            table: {way: round(_median(t.seconds for t in runs), 4) for way, runs in ways.items()}
            for table, ways in found.runs.items()
        },
        "cpu_seconds": {
            table: {way: round(_median(t.cpu_s for t in runs), 3) for way, runs in ways.items()}
            for table, ways in found.runs.items()
        },
        "memory_mib": {
            table: {way: {"idle": round(t.idle_mib), "peak": round(t.peak_mib)} for way, t in ways.items()}
            for table, ways in found.memory.items()
        },
        "every_run_s": {
            table: {way: [round(t.seconds, 4) for t in runs] for way, runs in ways.items()}
            for table, ways in found.runs.items()
        },
        "facts": {table: {way: runs[-1].facts for way, runs in ways.items()} for table, ways in found.runs.items()},
        "marks": [{**asdict(mark), "reached": mark.reached} for mark in marks_of(found)],
    }


def print_runs(found: Measurements, console: Console) -> None:
    """A table of all that was measured."""
    table = Table(title="Medians, libraries imported", title_justify="left")
    for name in ("", "seconds", "CPU seconds", "rows a second", "times our seconds", "peak MiB", "less idle"):
        table.add_column(name, justify="right" if name else "left")
    for number, (file, ways) in enumerate(found.runs.items()):
        if number:
            table.add_section()
        table.add_row(file, style="bold")
        for way, runs in ways.items():
            table.add_row(f"  {WAYS[way]}", *_cells(found, file, way, runs))
    console.print(table)


def print_marks(marks: Sequence[Mark], console: Console) -> None:
    """The marks, and whether they are reached."""
    table = Table(title="Marks", title_justify="left")
    for name in ("", "measured", "mark", "reached"):
        table.add_column(name, justify="right" if name in ("measured", "mark") else "left")
    for mark in marks:
        bound = f"{'at least' if mark.at_least else 'at most'} {mark.mark:g}"
        reached = {True: "yes", False: "NO", None: "not measured"}[mark.reached]
        table.add_row(mark.name, "" if mark.value is None else f"{mark.value:g}", bound, reached)
    console.print(table)


def print_profile(profiled: Timed, name: str, console: Console) -> None:
    """Prints the CPU seconds of one process by function; those of the decoder's threads count where they fall."""
    facts, total = profiled.facts, profiled.cpu_s
    title = f"{name}, one process, {facts['rows']:,} rows: {total:.2f} CPU seconds under the profiler"
    table = Table(title=title, title_justify="left")
    for name in ("with callees s", "share", "own s", "calls", "function"):
        table.add_column(name, justify="left" if name == "function" else "right", overflow="fold")
    for line in facts["lines"]:
        own, whole = line["own_s"], line["with_callees_s"]
        table.add_row(f"{whole:.3f}", f"{whole / total:.1%}", f"{own:.3f}", f"{line['calls']:,}", line["function"])
    console.print(table)


def _cells(found: Measurements, file: str, way: str, runs: Sequence[Timed]) -> Iterator[str]:
    seconds = _median(t.seconds for t in runs)
    own = found.seconds(file, "ours")
    sampled = found.memory.get(file, {}).get(way)
    yield f"{seconds:.3f}"
    yield f"{_median(t.cpu_s for t in runs):.2f}"
    yield f"{runs[-1].facts['rows'] / seconds:,.0f}"
    yield f"{seconds / own:.2f}" if own else ""
    yield f"{sampled.peak_mib:,.0f}" if sampled else ""
    yield f"{sampled.peak_mib - sampled.idle_mib:,.0f}" if sampled else ""


def _times(found: Measurements, table: str, *ways: str) -> float | None:
    return _ratio(found.seconds(table, *ways), found.seconds(table, "ours"))


def _ratio(above: float | None, below: float | None) -> float | None:
    return round(above / below, 3) if above and below else None


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)
