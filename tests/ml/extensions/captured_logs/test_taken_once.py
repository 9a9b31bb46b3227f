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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.errors import HopsError
from airflow_hops.extensions.captured_logs import CapturedSource
from airflow_hops.extensions.captured_logs.ml.plan import plan_logs
from airflow_hops.ml.ingest import Window, ingest_table
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.step.context import made_current
from tests.ml.extensions.captured_logs import logs
from tests.ml.extensions.captured_logs.test_empty_windows import events_of
from tests.ml.extensions.captured_logs.test_windows import HOUR_S, LOOKBACK, entry, hourly, window

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
class Runs:
    """Runs of the windows of a log, and the rows in their snapshots."""

    make_context: Any
    folder: Path
    source: CapturedSource
    snapshots: dict[int, list[str]] = field(default_factory=dict)
    versions: dict[int, Any] = field(default_factory=dict)
    runs: int = 0

    def plan(self, hour: int) -> tuple[Any, Any]:
        self.runs += 1
        context = self.make_context(run_id=f"run-{self.runs}", task_id=f"ingest-{self.folder.name}")
        (plan,) = plan_logs(context, sources={"log": self.source.to_dict()}, window=list(window(hour))).values()
        return context, json.loads(json.dumps(plan))

    def read(self, hour: int, context: Any, plan: Any) -> list[str]:
        self.runs += 1
        folder = self.folder / str(self.runs)
        folder.mkdir()
        with made_current(context):
            ingest_table("log", self.source, Window.parse(*window(hour)), OutputFolder(str(folder)), plan=plan)
        tables = [pq.read_table(path) for path in folder.glob("log/*.parquet")]
        return sorted(name for table in tables for name in table["request_id"].to_pylist())

    def run(self, hour: int, ends_before: str = "") -> None:
        """Runs a window to its end, or until it is killed."""
        context, plan = self.plan(hour)
        if ends_before == "read":
            return
        rows = self.read(hour, context, plan)
        if ends_before == "commit":
            return
        logs.commit(context, plan)
        self.keep(hour, rows)

    def keep(self, hour: int, rows: list[str]) -> None:
        """Keeps a snapshot; a window that was taken has the same rows again, and more by a source of more versions."""
        former, versions = self.snapshots.get(hour, rows), self.versions.get(hour, self.source.versions)
        assert former == rows or (versions != self.source.versions and set(former) < set(rows)), f"hour {hour}"
        self.snapshots[hour], self.versions[hour] = rows, self.source.versions

    def run_both(self, first: int, second: int, rng: random.Random) -> None:
        """Runs two windows, or one twice, at the same time; a run that is refused is tried again."""
        plans = {(number, hour): self.plan(hour) for number, hour in enumerate((first, second))}
        reads = {run: self.read(run[1], *plan) for run, plan in plans.items()}
        for run in rng.sample([*plans], 2):
            context, plan = plans[run]
            try:
                logs.commit(context, plan)
            except HopsError:
                self.run(run[1])
            else:
                self.keep(run[1], reads[run])


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
    runs = Runs(make_context, folder / f"snapshots-{seed}", source)
    events = Counter[str]()
    late: dict[int, list[dict[str, Any]]] = {}
    entries = [
        entry(number, rng.uniform(-0.2, HOURS) * HOUR_S, v=rng.choice([1, 1, 1, 1 if of_kserve else 2]))
        for number in range(rng.randint(5, 15))
    ]
    honest = [each for each in entries if each["t"] >= entry(0, 0)["t"]]
    runs.source = replace(source, versions={"1": 1})
    change = rng.choice([0, 2, 4])
    for each in entries:
        hour = max(0, int((each["t"] - entry(0, 0)["t"]) // HOUR_S))
        for line in events_of([each]) if of_kserve else [each]:
            for _ in range(rng.choice([1, 1, 1, 2, 3])):
                late.setdefault(hour + rng.choice([-1, 0, 0, 0, 1, 2]), []).append(line)
    missed = set[int]()
    for hour in range(-1, HOURS + LOOKBACK + 1):
        for each in rng.sample(lines := late.get(hour, []), len(lines)):
            files.deliver(each)
            if rng.random() < 0.1:
                events[files.change()] += 1
        for _ in range(rng.choice([0, 1, 1, 2])):
            events[files.change()] += 1
        if hour < 0:
            continue
        if hour == change:
            runs.source = replace(source, versions={"1": 1, "2": 2})
        is_last = hour >= HOURS + LOOKBACK - 1
        fate = rng.choice(["ends", "ends", "read", "commit", "both", "twice", *(["never"] if hour else [])])
        events[fate] += 1
        if is_last or fate == "ends":
            runs.run(hour)
        elif fate in ("read", "commit"):
            runs.run(hour, fate)
            missed.add(hour)
        elif fate == "never":
            missed.add(hour)
        else:
            runs.run_both(hour, hour if fate == "twice" or not hour else hour - 1, rng)
        if rng.random() < 0.3 and hour:  # a former one is cleared, or begins late
            again = rng.randrange(hour)
            events["late" if again in missed else "cleared"] += 1
            runs.run(again, rng.choice(["", "", "read", "commit"]))
    for hour in rng.sample([*runs.snapshots], min(3, len(runs.snapshots))):
        runs.run(hour)
    taken = Counter(name for rows in runs.snapshots.values() for name in rows)
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
