"""Fetching a shared data set over a slow line: against one HTTP download of the same bytes, and beside other traffic.

See ``README.md`` for what each figure means. It needs root, for network namespaces.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's
sys.path.append(str(REPOSITORY / "tests"))

import argparse  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator, Mapping  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from typing import Any  # noqa: E402

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from waiting import wait_for  # noqa: E402

from benchmarks.measurement import tcp_flow  # noqa: E402
from benchmarks.measurement.slow_network import Link, missing, slow_network  # noqa: E402
from tests.extensions.sharing.organisations import Organisation, random_files  # noqa: E402

REF = "north/numbers@1"
UP_MBIT_S, DOWN_MBIT_S = 20.0, 50.0
MARKS = {"one_source_of_http": 0.9, "two_sources_times_faster": 1.6, "of_bottleneck": 0.8, "tcp_of_solo": 0.9}
TIMEOUT_S = 3600.0


@contextmanager
def organisations(home: Path, runtime: Path, down_mbit_s: float) -> Iterator[list[Organisation]]:
    """Yields two sources, each with its own bottleneck, and one that fetches, with another."""
    shutil.rmtree(home, ignore_errors=True)
    source = Link(up_mbit_s=UP_MBIT_S, delay_ms=10, buffer_ms=200)
    links = {"north": source, "east": source, "south": Link(down_mbit_s=down_mbit_s, delay_ms=10, buffer_ms=200)}
    made: list[Organisation] = []
    with slow_network(**links) as hosts:
        for name, (namespace, address) in hosts.items():
            (home / name / "store").mkdir(parents=True)
            seeding = "always" if name == "east" else "never"
            made.append(
                Organisation(name, home / name, address, runtime, namespace=namespace, seeding=seeding, stall_s=600)
            )
        for one in made:
            one.trust(*(other for other in made if other is not one))
        try:
            yield made
        finally:
            for organisation in made:
                organisation.end()


def fetch(south: Organisation) -> float:
    """Has the data set fetched, and returns the seconds until its last byte has come."""
    dataset = wait_for(lambda: south.records.datasets(), south.log.read_text)[0]
    began = time.monotonic()
    south.records.request(dataset, "data")
    south.wait_until(REF, "storing", "fetched", "seeding", timeout_s=TIMEOUT_S)
    seconds = time.monotonic() - began
    south.wait_until(REF, "fetched", timeout_s=TIMEOUT_S)
    south.records.withdraw(dataset.ref)
    shutil.rmtree(south.fetched(REF))
    wait_for(lambda: south.transfer(REF) is None, south.log.read_text)
    return seconds


def download(south: Organisation, north: Organisation, folder: Path) -> float:
    """Downloads the files by HTTP, one after the other over one connection, and returns the seconds."""
    server = [sys.executable, "-m", "http.server", "--bind", north.address, "--directory", str(folder), "8081"]
    process = north.run(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1.0)
    urls = [f"http://{north.address}:8081/{path.relative_to(folder)}" for path in sorted(folder.rglob("*.parquet"))]
    began = time.monotonic()
    command = ["curl", "--noproxy", "*", "--silent", "--show-error", "--fail"]
    sinks = [part for _ in urls for part in ("--output", "/dev/null")]
    result = south.run([*command, *sinks, *urls]).wait()
    assert result == 0
    seconds = time.monotonic() - began
    process.kill()
    return seconds


def tcp_mbit_s(south: Organisation, east: Organisation, seconds: float) -> float:
    """Returns the rate of a TCP connection."""
    command = [sys.executable, tcp_flow.__file__, "receive", east.address, str(seconds)]
    return float(south.run(command, stdout=subprocess.PIPE).communicate()[0]) / 125_000


def measure_times(home: Path, runtime: Path, megabytes: int, rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each way, each in turn in every round."""
    results: dict[str, list[float]] = {"http": [], "one_source": [], "two_sources": []}
    for _ in range(rounds):
        with organisations(home, runtime, DOWN_MBIT_S) as (north, east, south):
            size = megabytes * 250_000
            files = random_files(home / "files", **{f"part-{number}": size for number in range(4)})
            north.share(files)
            north.start()
            results["http"].append(download(south, north, files))
            south.start()
            results["one_source"].append(fetch(south))
            east.start()
            east.ask(REF)
            east.wait_until(REF, "seeding", timeout_s=TIMEOUT_S)
            time.sleep(5)  # until the second source is in the catalogue
            results["two_sources"].append(fetch(south))
    return results


def measure_rates(home: Path, runtime: Path, seconds: float) -> dict[str, float]:
    """Returns rates in Mbit/s at a bottleneck before the one who fetches."""
    with organisations(home, runtime, UP_MBIT_S * 0.8) as (north, east, south):
        north.share(random_files(home / "files", a=int(UP_MBIT_S * 125_000 * (4 * seconds + 60))))
        east.run([sys.executable, tcp_flow.__file__, "send", east.address])
        north.start()
        south.start()
        solo = tcp_mbit_s(south, east, seconds)
        south.ask(REF)
        wait_for(lambda: (t := south.transfer(REF)) and t.done_bytes > 3_000_000, south.log.read_text, 120)
        start, began = south.transfer(REF), time.monotonic()
        time.sleep(seconds)
        end = south.transfer(REF)
        assert start is not None and end is not None
        alone = (end.done_bytes - start.done_bytes) / (time.monotonic() - began) / 125_000
        return {
            "bottleneck": UP_MBIT_S * 0.8,
            "tcp": solo,
            "alone": alone,
            "tcp_beside": tcp_mbit_s(south, east, seconds),
        }


def marks_of(seconds: Mapping[str, list[float]], rates: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Returns the marks, the measured values, and whether each is reached."""
    median = {name: sorted(values)[len(values) // 2] for name, values in seconds.items()}
    measured = {
        "one_source_of_http": median["http"] / median["one_source"],
        "two_sources_times_faster": median["http"] / median["two_sources"],
        "of_bottleneck": rates["alone"] / rates["bottleneck"],
        "tcp_of_solo": rates["tcp_beside"] / rates["tcp"],
    }
    return {
        name: {"mark": MARKS[name], "measured": round(value, 3), "reached": value >= MARKS[name]}
        for name, value in measured.items()
    }


def main() -> None:
    """Measures, prints tables, and a line of JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=60, help="size of the data set (default 60)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the comparison with HTTP (default 3)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each measured flow (default 30)")
    parser.add_argument("--runtime", type=Path, default=REPOSITORY / ".venv-runtime-sharing", help="with libtorrent")
    arguments, console = parser.parse_args(), Console(width=120)
    if (lacks := missing()) is not None:
        raise SystemExit(f"this machine lacks {lacks}")
    with tempfile.TemporaryDirectory(prefix="benchmark-sharing-") as home:
        seconds = measure_times(Path(home, "a"), arguments.runtime, arguments.megabytes, arguments.rounds)
        rates = measure_rates(Path(home, "b"), arguments.runtime, arguments.seconds)
    marks = marks_of(seconds, rates)
    table = Table("way", "seconds", "Mbit/s", title=f"{arguments.megabytes} MB, {UP_MBIT_S:g} Mbit/s from each source")
    for name, values in seconds.items():
        median = sorted(values)[len(values) // 2]
        table.add_row(name, ", ".join(f"{value:.1f}" for value in values), f"{arguments.megabytes * 8 / median:.1f}")
    console.print(table)
    console.print({name: round(value, 1) for name, value in rates.items()}, "Mbit/s")
    for name, mark in marks.items():
        console.print(f"{name}: {mark['measured']} ({'reached' if mark['reached'] else 'missed'}, mark {mark['mark']})")
    ratios = {name: mark["measured"] for name, mark in marks.items()}
    print(json.dumps({"benchmark": "sharing", "ratios": ratios, "figures": {"seconds": seconds, "mbit_s": rates},
                      "marks": marks}))  # fmt: skip


if __name__ == "__main__":
    main()
