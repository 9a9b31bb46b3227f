"""Retraining: the join of labels that came later with captured predictions, against DuckDB's join of the same files.

See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)

import argparse  # noqa: E402
import json  # noqa: E402
from statistics import median  # noqa: E402

from rich.console import Console  # noqa: E402

from airflow_hops.runner.environments.runtime import create_environment  # noqa: E402
from benchmarks.measurement.timing import time_work  # noqa: E402

WORK = REPOSITORY / ".hops" / "benchmarks" / "retraining"
RUNTIME = REPOSITORY / ".venv-runtime"
DUCKDB = REPOSITORY / ".hops" / "peers" / "duckdb"
OWN_WAYS = "benchmarks.measurement.retraining_ways"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is run; medians are reported")
    parser.add_argument("--rows", type=int, default=1_000_000, help="captured predictions")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="without DuckDB")
    given = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    folder = WORK / str(given.rows)
    if not (folder / "labels.parquet").exists():
        time_work(RUNTIME, OWN_WAYS, "write", folder, given.rows)
    ways = {"ours": (RUNTIME, OWN_WAYS)}
    if given.peers:
        pins = REPOSITORY / "benchmarks" / "peers" / "duckdb.txt"
        create_environment(DUCKDB, pins, uv=str(REPOSITORY / ".uv" / "bin" / "uv"), say=console.print)
        ways["duckdb"] = (DUCKDB, "benchmarks.peers.duckdb_join")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu_s: dict[str, list[float]] = {name: [] for name in ways}
    facts = set()
    for number in range(given.rounds):
        for name, (environment, module) in ways.items():
            timed = time_work(environment, module, "join", folder)
            seconds[name].append(timed.seconds)
            cpu_s[name].append(timed.cpu_s)
            facts.add(tuple(timed.facts[fact] for fact in ("rows", "joined", "sum")))
            console.print(f"round {number + 1}: {name}: {timed.seconds:.3f} s, {timed.cpu_s:.3f} CPU seconds")
    if len(facts) > 1:
        raise RuntimeError(f"the joins differ (rows, joined, sum of labels): {sorted(facts)}")
    ratios = {}
    if given.peers:
        ratios = {
            "join_of_duckdb": round(median(seconds["duckdb"]) / median(seconds["ours"]), 3),
            "join_cpu_of_duckdb": round(median(cpu_s["duckdb"]) / median(cpu_s["ours"]), 3),
        }
    figures = {"rows": given.rows, "seconds": seconds, "cpu_s": cpu_s}
    print(json.dumps({"benchmark": "retraining", "ratios": ratios, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
