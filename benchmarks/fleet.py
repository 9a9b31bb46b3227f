"""A model for each of thousands of shops: seconds and memory from raw files to a served fleet, and of a second run.

Raw files have 2,000 rows of 12 columns for each shop. The second run finds other rows of 1% of the shops, in a file for
each shop, or with ``--shops-in-file 100`` in every file. ``--dag fleet_examples`` ingests and prepares the rows before.
The control trains some shops as mapped tasks, a ridge regression each, and is extrapolated to all in proportion.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

from benchmarks.measurement.memory_account import MemoryAccount  # noqa: E402
from benchmarks.measurement.processes import trees  # noqa: E402
from benchmarks.measurement.runs import Run, run_dag  # noqa: E402
from demo.services import Stack  # noqa: E402

NUMBERS = 8
DAYS = np.array(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], object)
WEATHER = np.array(["sun", "rain", "snow", "wind"], object)


def rows_of(shop: int, rows: int, edition: int) -> pa.Table:
    """Rows of a shop, whose weights differ from those of the others; most of all if its number can be divided by 3."""
    own = np.random.default_rng([1, shop]).normal(size=NUMBERS) * (1.0 if shop % 3 == 0 else 0.1)
    generator = np.random.default_rng([2, shop, edition])
    numbers = generator.normal(size=(rows, NUMBERS)).astype(np.float32)
    day, weather = DAYS[generator.integers(0, 7, rows)], WEATHER[generator.integers(0, 4, rows)]
    label = numbers @ (np.linspace(1, 0.2, NUMBERS) + own) + (day == "Sun") + generator.normal(size=rows)
    columns: dict[str, Any] = {f"number_{n}": numbers[:, n] for n in range(NUMBERS)}
    row = np.char.add(f"{shop}-{edition}-", np.arange(rows).astype(str))
    return pa.table(
        {"shop": [f"shop {shop:05}"] * rows, **columns, "day": day, "weather": weather, "label": label, "row": row}
    )


def write_file(folder: Path, shops: range, rows: int, changed: frozenset[int] = frozenset()) -> None:
    """Writes the raw file of some shops, their rows in no order."""
    parts = [rows_of(shop, rows, int(shop in changed)) for shop in shops]
    table = pa.concat_tables(parts)
    order = np.random.default_rng(shops.start).permutation(len(table))
    pq.write_table(table.take(pa.array(order)), folder / f"shops-{shops.start:05}.parquet", row_group_size=50_000)


def measured(stack: Stack, api: Any, dag: str, name: str) -> tuple[Run, float]:
    """Runs the DAG; returns the run, and the greatest memory in MiB of its steps and the warm process."""

    def processes() -> list[psutil.Process]:
        roots = [psutil.Process(each.process.pid) for each in stack.services if each.process.poll() is None]
        steps = []
        for each in trees(roots):
            with contextlib.suppress(psutil.Error):  # it has ended
                steps += [each] if "airflow_hops.ml" in " ".join(each.cmdline()) else []
        return steps

    with MemoryAccount(processes) as account:
        run = run_dag(api, dag, {}, timeout_s=7200)
    stages = {task: round(seconds.total, 1) for task, seconds in run.stages.items()}
    peak = sum(account.peak.values())
    print(f"{name}: {run.total:.1f} s, {stages}, steps {peak:,.0f} MiB at most", file=sys.stderr, flush=True)
    print(f"  {run.values['train']['metrics']}", file=sys.stderr, flush=True)
    return run, peak


def main() -> int:
    """Measures, and prints a line of JSON last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shops", type=int, default=5000)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--mapped", type=int, default=100, help="shops of the control, a mapped task each; 0 for none")
    parser.add_argument("--shops-in-file", type=int, default=1)
    parser.add_argument("--dag", choices=("fleet_source", "fleet_examples"), default="fleet_source")
    parser.add_argument("--model", choices=("linear", "trees"), default="linear")
    arguments = parser.parse_args()
    all_shops = range(arguments.shops)
    files = [all_shops[first : first + arguments.shops_in_file] for first in all_shops[:: arguments.shops_in_file]]
    work = REPOSITORY / ".hops" / "benchmark-fleet"
    shutil.rmtree(work, ignore_errors=True)
    raw = work / "raw"
    raw.mkdir(parents=True)
    for shops in files:
        write_file(raw, shops, arguments.rows)
    os.environ["HOPS_BENCHMARK_SHOPS"] = str(raw)
    os.environ["HOPS_BENCHMARK_SHOPS_IN_FILE"] = str(arguments.shops_in_file)
    os.environ["HOPS_BENCHMARK_MODEL"] = arguments.model
    changed = frozenset(all_shops[::100])
    with tempfile.TemporaryDirectory(prefix="hops-bench-") as temporary:
        os.environ["TMPDIR"] = tempfile.tempdir = temporary
        runtime = (REPOSITORY / ".venv-runtime").resolve()
        with Stack(
            work / "home", runtime, REPOSITORY / "benchmarks" / "fleet_dags", say=Console(stderr=True).print
        ) as stack:
            api = stack.start()
            api.wait_for_dag(arguments.dag)
            first_run, first_peak = measured(stack, api, arguments.dag, "first run")
            for shops in files:
                if changed.intersection(shops):
                    write_file(raw, shops, arguments.rows, changed)
            second_run, second_peak = measured(stack, api, arguments.dag, f"second run, {len(changed)} shops changed")
            mapped_s = 0.0
            if arguments.mapped:
                api.wait_for_dag("mapped_shops")
                mapped_s = run_dag(api, "mapped_shops", {"shops": arguments.mapped}, timeout_s=3600).total
                print(f"{arguments.mapped} mapped tasks: {mapped_s:.1f} s", file=sys.stderr, flush=True)
    figures = {
        "mapped": arguments.mapped,
        "mapped_s": round(mapped_s, 1),
        # In proportion, which flatters it: the scheduler takes longer for each task the more there are.
        "mapped_extrapolated_s": round(mapped_s / max(arguments.mapped, 1) * arguments.shops),
        **{name: getattr(arguments, name) for name in ("dag", "model", "shops", "shops_in_file")},
        "rows": arguments.shops * arguments.rows,
        "first_s": round(first_run.total, 1),
        "first_peak_mib": round(first_peak),
        "second_s": round(second_run.total, 1),
        "second_peak_mib": round(second_peak),
        "first_stages_s": {task: round(seconds.total, 1) for task, seconds in first_run.stages.items()},
        "second_stages_s": {task: round(seconds.total, 1) for task, seconds in second_run.stages.items()},
        "trained_again": second_run.values["train"]["metrics"]["trained"],
    }
    ratios = {"first run to second": first_run.total / second_run.total}
    ratios |= {"mapped tasks": figures["mapped_extrapolated_s"] / figures["first_s"]} if arguments.mapped else {}
    shutil.rmtree(work)
    print(json.dumps({"benchmark": "fleet", "ratios": ratios, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
