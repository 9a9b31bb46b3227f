"""Skew checks that grow: seconds, CPU seconds and memory by the number of captured rows, and of features.

See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import statistics  # noqa: E402

from benchmarks.measurement.statistics_figures import Mark, print_marks  # noqa: E402
from benchmarks.measurement.timing import Timed, time_work  # noqa: E402

WORK = REPOSITORY / ".hops" / "benchmarks" / "skew"
RUNTIME = REPOSITORY / ".venv-runtime"
MODULE = "benchmarks.measurement.skew_growth"
SIZES = ((100_000, 20), (300_000, 20), (1_000_000, 20), (100_000, 100), (100_000, 500))
"""Captured rows and features; the first and the third are compared, and the last two."""
WAYS = {"check": "by feature", "row_check": "by row"}


def set_up(rows: int, features: int, say: Callable[[str], None]) -> Path:
    """The folder of a captured window and its reference, which are made where they are not there."""
    folder, unfinished = WORK / f"{rows}x{features}", WORK / "unfinished"
    if not folder.exists():
        say(f"making {rows:,} rows of {features} features")
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [str(RUNTIME / "bin" / "python"), "-m", MODULE, "write", str(unfinished), str(rows), str(features)]
        subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
        unfinished.rename(folder)
    return folder


def growth_of(cpu_s: dict[tuple[int, int], float], memory: dict[tuple[str, tuple[int, int]], Timed]) -> list[Mark]:
    """Returns the cost of one more row, and of one more feature, where there are many, over that of few."""
    few, _, many, narrow, wide = SIZES
    by_row = cpu_s[many] / cpu_s[few] * few[0] / many[0]
    by_feature = cpu_s[wide] / cpu_s[narrow] * narrow[1] / wide[1]
    more = {way: round(memory[way, many].peak_mib - memory[way, few].peak_mib) for way in WAYS}
    return [
        Mark("CPU seconds a row, 1,000,000 rows over 100,000", round(by_row, 3), 1.2, False),
        Mark("CPU seconds a feature, 500 features over 100", round(by_feature, 3), 1.2, False),
        Mark("MiB more at the peak, 1,000,000 rows than 100,000", more["check"], 64, False),
        Mark("MiB more at the peak, row by row, 1,000,000 rows than 100,000", more["row_check"], 96, False),
    ]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is run; medians are reported")
    given = parser.parse_args()
    console = Console(width=110, highlight=False)
    say = Console(stderr=True, highlight=False).print
    folders = {size: set_up(*size, say) for size in SIZES}
    runs: dict[tuple[str, tuple[int, int]], list[Timed]] = {(way, size): [] for way in WAYS for size in SIZES}
    memory: dict[tuple[str, tuple[int, int]], Timed] = {}
    for number in range(given.rounds + 1):
        for way, size in runs:
            # The last round is for memory alone, since sampling costs time.
            timed = time_work(RUNTIME, MODULE, way, folders[size], with_memory=number == given.rounds)
            if number == given.rounds:
                memory[way, size] = timed
            else:
                runs[way, size].append(timed)
            say(f"round {number + 1}, {WAYS[way]}, {size[0]:,} rows of {size[1]} features: {timed.cpu_s:.2f} CPU s")
    table = Table("comparison", "rows", "features", "seconds", "CPU seconds", "MiB before", "MiB at the peak")
    figures = {}
    for (way, (rows, features)), found in runs.items():
        seconds, cpu_s = (statistics.median(getattr(run, name) for run in found) for name in ("seconds", "cpu_s"))
        sampled = memory[way, (rows, features)]
        figures[f"{way}_{rows}_rows_{features}_features"] = {
            "seconds": round(seconds, 3),
            "cpu_s": round(cpu_s, 3),
            "idle_mib": round(sampled.idle_mib),
            "peak_mib": round(sampled.peak_mib),
            "facts": found[-1].facts,
        }
        cells = [f"{seconds:.2f}", f"{cpu_s:.2f}", f"{sampled.idle_mib:.0f}", f"{sampled.peak_mib:.0f}"]
        table.add_row(WAYS[way], f"{rows:,}", str(features), *cells)
    console.print(table)
    marks = growth_of({size: statistics.median(run.cpu_s for run in runs["check", size]) for size in SIZES}, memory)
    print_marks(marks, console)
    ratios = {mark.name: round(mark.mark / mark.value, 3) for mark in marks if mark.value}
    print(json.dumps({"benchmark": "skew", "ratios": ratios, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
