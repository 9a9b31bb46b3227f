"""Prepare on DuckDB, 10 million rows of ten columns, against DuckDB's own ``COPY`` of the same query.

Each way runs in a process of its own, both in turn in each round. See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import argparse  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402

from benchmarks.measurement.timing import time_work  # noqa: E402

WORK = REPOSITORY / ".hops" / "benchmarks"
RUNTIME = REPOSITORY / ".venv-runtime"
WAYS = "benchmarks.measurement.prepare_ways"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is run; medians are reported")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the table")
    given = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, list[float]] = {"ours": [], "copy": []}
    cpu_s: dict[str, list[float]] = {"ours": [], "copy": []}
    with tempfile.TemporaryDirectory(dir=WORK, prefix="prepare-") as folder:
        command = [str(RUNTIME / "bin" / "python"), "-m", WAYS, "write", folder, str(given.rows)]
        subprocess.run(command, cwd=REPOSITORY, check=True)
        for number in range(given.rounds):
            for way in seconds:
                run = Path(folder) / f"{way}-{number}"
                run.mkdir()
                (run / f"orders-{given.rows}.parquet").hardlink_to(Path(folder) / f"orders-{given.rows}.parquet")
                timed = time_work(RUNTIME, WAYS, way, run, given.rows)
                if timed.facts["rows"] != given.rows:
                    raise RuntimeError(f"{way} has seen {timed.facts['rows']} rows, expected {given.rows}")
                seconds[way].append(timed.seconds)
                cpu_s[way].append(timed.cpu_s)
                print(
                    f"round {number + 1}: {way} {timed.seconds:.2f} s, {timed.cpu_s:.2f} CPU seconds", file=sys.stderr
                )
    middle = {way: round(statistics.median(each), 2) for way, each in seconds.items()}
    ratio = round(middle["copy"] / middle["ours"], 3)
    print(f"prepare takes {middle['ours']} s, {1 / ratio:.1f} times DuckDB's COPY (mark: at most 3)")
    figures = {"rows": given.rows, "seconds": seconds, "cpu_s": cpu_s, "marks": {"times_of_copy": 3.0}}
    print(json.dumps({"benchmark": "prepare", "ratios": {"copy_over_prepare": ratio}, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
