"""Scores of 10 million rows of 20 features by boosted trees in ONNX, without a server.

Beside DuckDB's own ``COPY`` of the same rows, and a loop of onnxruntime over pandas chunks. Each way runs in a process
of its own, all in turn in each round. See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import argparse  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402

from benchmarks.measurement.timing import Timed, time_work  # noqa: E402

WORK = REPOSITORY / ".hops" / "benchmarks"
RUNTIME = REPOSITORY / ".venv-runtime"
WAYS = "benchmarks.measurement.score_ways"
NAMES = ("ours", "canary", "uncaptured", "loop", "copy")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is run; medians are reported")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the table")
    parser.add_argument("--ways", nargs="+", choices=NAMES, default=NAMES, help="ways to run")
    parser.add_argument("--without-memory", action="store_true", help="does not sample memory, which costs some time")
    given = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    timed: dict[str, list[Timed]] = {way: [] for way in given.ways}
    with tempfile.TemporaryDirectory(dir=WORK, prefix="score-") as folder:
        command = [str(RUNTIME / "bin" / "python"), "-m", WAYS, "write", folder, str(given.rows)]
        subprocess.run(command, cwd=REPOSITORY, check=True)
        for number in range(given.rounds):
            for way in given.ways:
                run = Path(folder) / f"{way}-{number}"
                run.mkdir()
                one = time_work(RUNTIME, WAYS, way, run, given.rows, with_memory=not given.without_memory)
                shutil.rmtree(run)
                if one.facts["rows"] != given.rows:
                    raise RuntimeError(f"{way} has seen {one.facts['rows']} rows, expected {given.rows}")
                timed[way].append(one)
                print(
                    f"round {number + 1}: {way} {one.seconds:.1f} s, {one.cpu_s:.1f} CPU seconds, "
                    f"{given.rows / one.seconds:,.0f} rows/s, at most {one.peak_mib:,.0f} MiB",
                    file=sys.stderr,
                )
    figures = {
        way: {
            "seconds": [round(one.seconds, 2) for one in each],
            "cpu_s": [round(one.cpu_s, 2) for one in each],
            "peak_mib": [round(one.peak_mib) for one in each],
        }
        for way, each in timed.items()
    }
    middle = {way: statistics.median(one.seconds for one in each) for way, each in timed.items()}
    ratios = {f"{way}_over_ours": round(middle[way] / middle["ours"], 3) for way in middle if "ours" in middle}
    ratios.pop("ours_over_ours", None)
    print(json.dumps({"benchmark": "score", "ratios": ratios, "figures": {"rows": given.rows, **figures}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
