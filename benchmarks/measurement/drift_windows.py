"""Judges windows of shaped columns, and of buildings, with this project's ``detect_skew``.

Runs in the runtime environment: ``python -m benchmarks.measurement.drift_windows <what> <folder> <part> <parts>``,
where ``folder`` has the ``plan.json`` of :mod:`benchmarks.drift_power`. ``prepare`` writes references, ``judge``
answers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurement.buildings import judge_building, write_building
from benchmarks.measurement.drift_shapes import draw_table

SEED = 51
REFERENCE_ROWS = 20_000
WITH_SCHEMA, ANY_CHANGE = "with schema", "any change"
WAYS: Mapping[str, Mapping[str, Any]] = {WITH_SCHEMA: {}, ANY_CHANGE: {"threshold": 0.0}}
"""Options of ``detect_skew`` by way: the default threshold, and none, so that chance alone decides."""
BUILDING_WAYS: Mapping[str, Mapping[str, Any]] = {"weeks against the year": {}, "own weeks": {"time": "time"}}
"""The same for the weeks of a building: compared with the whole year, and with its own weeks."""


def part_of(jobs: int) -> Iterator[int]:
    """Yields the numbers of this process's jobs, by its last two arguments."""
    return iter(range(int(sys.argv[3]), jobs, int(sys.argv[4])))


def answer(folder: Path, name: str, jobs: int, work: Callable[[int], Any]) -> None:
    """Does the jobs of this process, and writes a line of JSON for each: its number and what it returns."""
    with (folder / f"{name}-{sys.argv[3]}.jsonl").open("w") as file:
        for number in part_of(jobs):
            print(json.dumps([number, work(number)]), file=file, flush=True)


def write_reference(table: Any, folder: Path, **roles: str) -> None:
    """Writes what a comparison reads of a reference: its statistics with its sample of rows, and its schema.

    Args:
        table: ``pyarrow.Table`` of the reference.
        folder: Where to.
        roles: Columns with a role, as ``infer_schema`` takes them.
    """
    import pyarrow.parquet as pq

    from airflow_hops.ml.schema import infer_schema, to_text
    from airflow_hops.ml.statistics import STATISTICS_FILE, comparable_options
    from airflow_hops.ml.statistics.generate import collect_statistics

    collected = collect_statistics(table, options=comparable_options())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STATISTICS_FILE).write_bytes(collected.statistics.SerializeToString())
    (folder / "schema.pbtxt").write_text(to_text(infer_schema(collected.statistics, **roles)))
    if (sample := getattr(collected, "sample", None)) is not None:
        pq.write_table(sample, folder / "sample.parquet")


def detector(folder: Path, options: Mapping[str, Any]) -> Callable[[Any], list[str]]:
    """Returns what tells the drifted features of a window against a written reference."""
    from airflow_hops.ml.schema import load_schema
    from airflow_hops.ml.skew import detect_skew
    from airflow_hops.ml.statistics import STATISTICS_FILE

    schema = load_schema(folder / "schema.pbtxt")
    return lambda window: list(detect_skew(folder / STATISTICS_FILE, window, schema=schema, **options).drifted)


def window_of(job: Mapping[str, Any]) -> Any:
    """Draws the window of a job of the plan."""
    return draw_table(np.random.default_rng([SEED, 1, *job["seed"]]), job["rows"], job["changed"])


def prepare(folder: Path, plan: Mapping[str, Any]) -> None:
    """Writes references (with their rows, which peers read) and buildings."""
    import pyarrow.parquet as pq

    for number in part_of(plan["references"]):
        table = draw_table(np.random.default_rng([SEED, 0, number]), REFERENCE_ROWS)
        write_reference(table, folder / f"reference-{number}")
        pq.write_table(table, folder / f"reference-{number}" / "rows.parquet")
    for number in part_of(plan["buildings"]):
        write_building(folder, number)


def judge(folder: Path, plan: Mapping[str, Any]) -> None:
    """Answers the drifted features of each job in each of its ways; then what :func:`judge_building` returns."""
    import pyarrow.parquet as pq

    def judged(number: int) -> dict[str, list[str]]:
        job = plan["jobs"][number]
        window = window_of(job)
        if job["for_peer"]:
            pq.write_table(window, folder / f"window-{number}.parquet")
        reference = folder / f"reference-{job['reference']}"
        return {way: detector(reference, WAYS[way])(window) for way in job["ways"]}

    def judged_building(number: int) -> dict[str, Any]:
        reference = folder / f"building-{number}"

        def judge(way: str, training: Any) -> Callable[[Any], bool]:
            write_reference(training, reference, time="time")
            drifted = detector(reference, BUILDING_WAYS[way])
            return lambda window: bool(drifted(window))

        return {way: judge_building(folder, number, partial(judge, way)) for way in BUILDING_WAYS}

    answer(folder, "jobs", len(plan["jobs"]), judged)
    answer(folder, "buildings", plan["buildings"], judged_building)


if __name__ == "__main__":
    where = Path(sys.argv[2])
    {"prepare": prepare, "judge": judge}[sys.argv[1]](where, json.loads((where / "plan.json").read_text()))
