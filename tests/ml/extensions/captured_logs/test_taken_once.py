"""Each entry of a log is in one snapshot, whatever happens to the runs that take it and to the files that have it.

The model: entries are delivered to ``app.jsonl`` in the hour of their time or later, some several times; files are
rotated, compressed, moved, joined, compacted and copied, without a loss; runs are killed, never started, cleared, run
late, or at the same time; entries of version 2 are taken from some hour on. Of KServe, requests and responses are
delivered apart.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.extensions.captured_logs import CapturedSource
from airflow_hops.extensions.captured_logs.ml.plan import plan_logs
from airflow_hops.ml.ingest import Window, ingest_table
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.step.context import made_current
from tests.ml.extensions.captured_logs import logs
from tests.ml.extensions.captured_logs.test_empty_windows import events_of
from tests.ml.extensions.captured_logs.test_windows import HOUR_S, LOOKBACK, entry, hourly, window
from tests.ml.taken_histories import Runs

HOURS = 4
KINDS = ("rotate", "copytruncate", "compress", "move", "rename", "join", "copy", "touch", "compact")
"""Changes that tools make to files."""


@dataclass
class Files:
    """A log whose files change without a loss."""

    rng: random.Random
    folder: Path
    kinds: Sequence[str] = KINDS
    names: int = 0

    def deliver(self, line: dict[str, Any]) -> None:
        logs.append(self.folder / "app.jsonl", [line])

    def change(self) -> str:
        """Does one thing that tools do to logs."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        done = [path for path in files if path.name != "app.jsonl"]
        lines = [path for path in done if path.suffix not in (".gz", ".parquet")]
        live = self.folder / "app.jsonl"
        kind = self.rng.choice(self.kinds)
        self.names += 1
        new = self.folder / f"app.jsonl.{self.names}"
        if kind == "rotate" and live.exists():
            live.rename(new)
        elif kind == "copytruncate" and live.exists():
            shutil.copy(live, new)
            live.write_text("")
        elif kind == "compress" and lines:
            path = self.rng.choice(lines)
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        elif kind in ("move", "rename") and done:
            path = self.rng.choice(done)
            to = self.folder / "old" if kind == "move" else path.parent
            to.mkdir(exist_ok=True)
            path.rename(to / f"{self.names}-{path.name[-20:]}")
        elif kind == "join" and len(lines) > 1:
            chosen = self.rng.sample(lines, 2)
            new.write_bytes(b"".join(path.read_bytes() for path in chosen))
            for path in chosen:
                path.unlink()
        elif kind == "compact" and lines:
            chosen = self.rng.sample(lines, self.rng.randint(1, len(lines)))
            rows = [json.loads(line) for path in chosen for line in path.read_text().splitlines()]
            if rows:
                pq.write_table(pa.Table.from_pylist(rows), new.with_name(f"{new.name}.parquet"))
                for path in chosen:
                    path.unlink()
        elif kind == "copy" and files:
            path = self.rng.choice(files)
            shutil.copy(path, self.folder / f"copy-{self.names}{path.suffix}")
        elif kind == "touch" and done:
            self.rng.choice(done).touch()
        else:
            return ""
        return kind


@dataclass
class LogRuns(Runs):
    """Runs of the windows of a log; ``options`` are the versions that the source names."""

    make_context: Any
    folder: Path
    source: CapturedSource
    runs: int = 0

    def plan(self, hour: int) -> tuple[Any, Any]:
        self.runs += 1
        context = self.make_context(run_id=f"run-{self.runs}", task_id=f"ingest-{self.folder.name}")
        source = replace(self.source, versions=self.options)
        (plan,) = plan_logs(context, sources={"log": source.to_dict()}, window=list(window(hour))).values()
        return context, json.loads(json.dumps(plan))

    def read(self, hour: int, plan: tuple[Any, Any]) -> list[str]:
        self.runs += 1
        folder, source = self.folder / str(self.runs), replace(self.source, versions=self.options)
        folder.mkdir()
        with made_current(plan[0]):
            ingest_table("log", source, Window.parse(*window(hour)), OutputFolder(str(folder)), plan=plan[1])
        tables = [pq.read_table(path) for path in folder.glob("log/*.parquet")]
        return sorted(name for table in tables for name in table["request_id"].to_pylist())

    def commit(self, plan: tuple[Any, Any]) -> None:
        logs.commit(*plan)


def simulate(seed: int, make_context: Any, folder: Path) -> Counter[str]:
    """Runs a history; returns how often each thing happened."""
    rng = random.Random(seed)
    for name in ("log", f"snapshots-{seed}"):
        (folder / name).mkdir()
    source, kinds, of_kserve = hourly(folder / "log"), KINDS, rng.random() < 0.25
    if of_kserve:  # its events do not survive the compaction, whose columns are those of all events
        options = {"layout": "kserve", "versions": {"1": 1}, "lookback": LOOKBACK}
        source, kinds = CapturedSource(str(folder / "log"), model="m", **options), KINDS[:-1]
    files = Files(rng, folder / "log", kinds)
    runs = LogRuns(make_context, folder / f"snapshots-{seed}", source)
    events = Counter[str]()
    late: dict[int, list[dict[str, Any]]] = {}
    entries = [
        entry(number, rng.uniform(-0.2, HOURS) * HOUR_S, v=rng.choice([1, 1, 1, 1 if of_kserve else 2]))
        for number in range(rng.randint(5, 15))
    ]
    honest = [each for each in entries if each["t"] >= entry(0, 0)["t"]]
    runs.options = {"1": 1}
    change = rng.choice([0, 2, 4])
    for each in entries:
        hour = max(0, int((each["t"] - entry(0, 0)["t"]) // HOUR_S))
        for line in events_of([each]) if of_kserve else [each]:
            for _ in range(rng.choice([1, 1, 1, 2, 3])):
                late.setdefault(hour + rng.choice([-1, 0, 0, 0, 1, 2]), []).append(line)
    for hour in runs.history(rng, HOURS + LOOKBACK + 1, HOURS + LOOKBACK - 1, events):
        for each in rng.sample(lines := late.get(hour, []), len(lines)):
            files.deliver(each)
            if rng.random() < 0.1:
                events[files.change()] += 1
        for _ in range(rng.choice([0, 1, 1, 2])):
            events[files.change()] += 1
        if hour == change:
            runs.options = {"1": 1, "2": 2}
    taken = runs.counts()
    sure = Counter(each["id"] for each in honest if each["v"] == 1 or not change)
    assert sure <= taken <= Counter(each["id"] for each in honest), f"seed {seed}"
    return events


def test_each_entry_is_taken_once(make_context: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    for seed in range(50):
        simulate(seed, make_context, tmp_path_factory.mktemp("history"))


@pytest.mark.scheduled(part="campaigns")
@pytest.mark.timeout(3600)
def test_each_entry_of_2000_histories_is_taken_once(
    make_context: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for seed in range(1000, 3000):
        simulate(seed, make_context, tmp_path_factory.mktemp("history"))
