"""Evidently's DataDriftPreset on the windows of :mod:`benchmarks.drift_power`, in an environment of its own.

``python -m benchmarks.peers.evidently_power judge <folder> <part> <parts>``, after
:mod:`benchmarks.measurement.drift_windows` has written the windows. Lists are left out: Evidently has no test for them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from evidently import Report
from evidently.presets import DataDriftPreset

from benchmarks.measurement.buildings import FEATURES, judge_building
from benchmarks.measurement.drift_windows import answer


def drifted_columns(reference: pd.DataFrame, current: pd.DataFrame) -> list[str]:
    """Returns the columns that the preset calls drifted with its defaults."""
    results = Report([DataDriftPreset()]).run(current, reference).dict()["metrics"]
    drifts = [(one["config"], float(one["value"])) for one in results if "method" in one["config"]]
    # A p-value is low where there is drift, a distance is high.
    return [
        config["column"]
        for config, value in drifts
        if (value < config["threshold"] if "p_value" in config["method"] else value >= config["threshold"])
    ]


def without_lists(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the columns that are not lists."""
    return frame[[name for name in frame if not name.startswith(("lists", "vectors"))]]


def main() -> None:
    """Answers as :mod:`benchmarks.measurement.drift_windows` does; a job with changes is judged on those columns."""
    folder = Path(sys.argv[2])
    plan = json.loads((folder / "plan.json").read_text())
    jobs = [number for number, job in enumerate(plan["jobs"]) if job["for_peer"]]
    references = {
        number: without_lists(pd.read_parquet(folder / f"reference-{number}" / "rows.parquet"))
        for number in range(plan["references"])
    }

    def judged(position: int) -> tuple[int, list[str]]:
        number = jobs[position]
        job: Mapping[str, Any] = plan["jobs"][number]
        window = without_lists(pd.read_parquet(folder / f"window-{number}.parquet"))
        names = [name for name in window if name in job["changed"] or not job["changed"]]
        return number, drifted_columns(references[job["reference"]][names], window[names]) if names else []

    def judge_of_building(training: Any) -> Callable[[Any], bool]:
        names = list(FEATURES)
        frame = training.select(names).to_pandas()
        return lambda window: bool(drifted_columns(frame, window.select(names).to_pandas()))

    answer(folder, "peer-jobs", len(jobs), judged)
    answer(folder, "peer-buildings", plan["buildings"], lambda n: judge_building(folder, n, judge_of_building))


if __name__ == "__main__":
    main()
