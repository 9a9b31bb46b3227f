"""Power and false alarms of skew checks: columns of many shapes with one change each, and weeks of buildings.

Evidently's defaults judge the same windows. See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

from airflow_hops.runner.environments.runtime import create_environment  # noqa: E402
from benchmarks.measurement import buildings, drift_figures  # noqa: E402
from benchmarks.measurement.drift_figures import COMPARED_ROWS, PEER  # noqa: E402
from benchmarks.measurement.drift_shapes import HARMLESS_OF, SHAPES, population_distance  # noqa: E402
from benchmarks.measurement.drift_windows import ANY_CHANGE, BUILDING_WAYS, WITH_SCHEMA  # noqa: E402
from benchmarks.measurement.statistics_figures import print_marks  # noqa: E402

WORK = REPOSITORY / ".hops" / "benchmarks" / "drift_power"
RUNTIME = REPOSITORY / ".venv-runtime"
EVIDENTLY = REPOSITORY / ".hops" / "peers" / "evidently"
REFERENCES = 8
"""References of 20,000 rows that windows are judged against in turn, so that no single draw decides."""
CHANGED_TOGETHER = 9
UNCHANGED = {200: 200, 1_500: 200, 20_000: 60}
"""Unchanged windows by their rows."""
WINDOWS = {200: 3, 1_500: 20, 20_000: 2}
"""Windows of each change by their rows."""
ANY_CHANGE_EVERY = 4
"""Of the windows that are judged for any change, too: unchanged ones, and changed ones of the compared size."""
PEER_UNCHANGED, PEER_CHANGED = 60, 10
"""Windows of each kind that the peer judges."""


def changed_together() -> Iterator[dict[str, str]]:
    """Yields changes by shape: all pairs of a shape and a change of it, a few different shapes at once."""
    left = [(name, change) for name, shape in SHAPES.items() for change in shape.changes]
    while left:
        batch: dict[str, str] = {}
        for name, change in list(left):
            if name not in batch and len(batch) < CHANGED_TOGETHER:
                batch[name] = change
                left.remove((name, change))
        yield batch


def jobs_of(share: float) -> Iterator[dict[str, Any]]:
    """Yields the windows to judge.

    Args:
        share: Share of the windows, 0 to 1; at least one of each kind.
    """
    both, one = [WITH_SCHEMA, ANY_CHANGE], [WITH_SCHEMA]
    batches = [*changed_together(), dict(HARMLESS_OF)]
    kinds = [(number, batch, WINDOWS) for number, batch in enumerate([{}, *batches])]
    for number, changed, windows in [(0, {}, UNCHANGED), *kinds[1:]]:
        for rows, count in windows.items():
            for window in range(max(1, round(count * share))):
                compared = rows == COMPARED_ROWS
                two_ways = window % ANY_CHANGE_EVERY == 0 and (compared or not changed)
                yield {
                    "seed": [number, rows, window],
                    "reference": window % REFERENCES,
                    "rows": rows,
                    "changed": changed,
                    "ways": both if two_ways else one,
                    "for_peer": compared and window < (PEER_CHANGED if changed else PEER_UNCHANGED),
                }


def run_parts(environment: Path, module: str, what: str, parts: int) -> None:
    """Runs a module in processes that share its jobs.

    Raises:
        RuntimeError: one of them failed; the message has the end of its log.
    """
    settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "DO_NOT_TRACK": "1", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(environment / "bin" / "python"), "-m", module, what, str(WORK)]
    running = []
    for part in range(parts):
        log = WORK / f"{module.rpartition('.')[2]}-{what}-{part}.log"
        with log.open("w") as file:
            started = subprocess.Popen(
                [*command, str(part), str(parts)], cwd=REPOSITORY, env={**kept, **settings}, stdout=file, stderr=file
            )
        running.append((started, log))
    for process, log in running:
        if code := process.wait():
            raise RuntimeError(f"{module} {what} ended with {code}; the end of its log:\n{log.read_text()[-3000:]}")


def answers_of(name: str) -> list[Any]:
    """Returns the answers of all processes, in the order of the jobs."""
    lines = [line for file in sorted(WORK.glob(f"{name}-[0-9]*.jsonl")) for line in file.read_text().splitlines()]
    return [answer for _, answer in sorted((json.loads(line) for line in lines), key=lambda pair: pair[0])]


def measure(given: argparse.Namespace, say: Any) -> dict[str, Any]:
    """Judges all windows, and returns the figures."""
    jobs = list(jobs_of(given.share)) if given.shapes else []
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    plan = {"references": REFERENCES if jobs else 0, "buildings": given.buildings, "jobs": jobs}
    (WORK / "plan.json").write_text(json.dumps(plan))
    say("writing references")
    run_parts(RUNTIME, "benchmarks.measurement.drift_windows", "prepare", given.processes)
    say(f"judging {len(jobs):,} windows of shapes, and {given.buildings} buildings")
    run_parts(RUNTIME, "benchmarks.measurement.drift_windows", "judge", given.processes)
    answers: list[tuple[Mapping[str, Any], dict[str, Any]]] = list(zip(jobs, answers_of("jobs"), strict=True))
    of_buildings = answers_of("buildings")
    by_way = {way: [each[way] for each in of_buildings] for way in BUILDING_WAYS}
    if given.peers:
        say(f"the same with {PEER}")
        uv = str(REPOSITORY / ".uv" / "bin" / "uv")
        create_environment(EVIDENTLY, REPOSITORY / "benchmarks" / "peers" / "evidently.txt", uv=uv, say=say)
        run_parts(EVIDENTLY, "benchmarks.peers.evidently_power", "judge", given.processes)
        for number, names in answers_of("peer-jobs"):
            answers[number][1][PEER] = names
        by_way[PEER] = answers_of("peer-buildings")
    pairs = {pair for job in jobs for pair in job["changed"].items() if pair not in HARMLESS_OF.items()}
    distances = {pair: population_distance(*pair) for pair in sorted(pairs)}
    return {
        "false_alarms": drift_figures.false_alarms_of(answers),
        "power": drift_figures.power_of(answers, distances),
        "buildings": {way: buildings.figures_of(each) for way, each in by_way.items() if each},
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="share of the windows, for a first impression")
    parser.add_argument("--no-shapes", dest="shapes", action="store_false", help="buildings alone")
    parser.add_argument("--buildings", type=int, default=3, help="number of buildings; 0 for none")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="without Evidently")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="that share the windows")
    parser.add_argument("--earlier", type=Path, help="JSON file of earlier figures, below which no power may be")
    parser.add_argument("--output", type=Path, default=WORK / "figures.json", help="JSON file for the figures")
    given = parser.parse_args()
    earlier = json.loads(given.earlier.read_text()) if given.earlier else None
    figures = measure(given, Console(stderr=True, highlight=False).print)
    given.output.write_text(json.dumps(figures, indent=1))
    console = Console(width=165, highlight=False)
    ratios = {}
    if given.shapes:
        for way in (WITH_SCHEMA, PEER) if given.peers else (WITH_SCHEMA,):
            drift_figures.print_power(figures, way, console)
        drift_figures.print_summary(figures, console)
        for way in (WITH_SCHEMA, ANY_CHANGE) if earlier else ():
            for cell in drift_figures.below_of(figures, earlier, way):
                console.print(f"less power than before: {cell}")
        print_marks(drift_figures.marks_of(figures, earlier), console)
        theirs = drift_figures.compared_cells(figures, PEER)
        both = {(cell["shape"], cell["change"]) for cell in theirs}
        ours = [c for c in drift_figures.compared_cells(figures, WITH_SCHEMA) if (c["shape"], c["change"]) in both]
        means = drift_figures.mean_power(ours), drift_figures.mean_power(theirs)
        if means[0] and means[1]:
            ratios["power_of_evidently"] = round(means[0] / means[1], 3)
    drift_figures.print_buildings(figures["buildings"], console)
    print(json.dumps({"benchmark": "drift_power", "ratios": ratios, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
