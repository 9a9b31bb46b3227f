"""Windows whose scoring and writing are killed at random points: each row is once in the table, and captured once."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from step_runner import StepRunner

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, write_record
from airflow_hops.extensions.tables import Table
from tests.campaigns import campaign
from tests.extensions.tables.conftest import postgres, postgres_port  # noqa: F401

pytestmark = [pytest.mark.runtime, pytest.mark.server]

DAYS, ROWS = (1, 2, 3), 400
WORKERS = multiprocessing.get_context("forkserver")
WORKERS.set_forkserver_preload(["airflow_hops.runner.runtime", "airflow_hops.extensions.tables.runner.write"])


class Nightly:
    """A pipeline that scores a day's rows in two files with a champion and a canary, and writes them to PostgreSQL."""

    def __init__(self, folder: Path, run_step: StepRunner, launcher: Any, database: Any) -> None:
        self.folder, self.runner, self.launcher, self.database = folder, run_step, launcher, database
        self.services = {"serving_kind": "batch", "serving_capture_path": str(folder / "captured")}
        database.execute(
            "CREATE TABLE scores (id text, probability real, version int8, hops_batch text, hops_folder text)"
        )
        entry, code = "scored_rows:write_model", (str(Path(__file__).parent),)
        models = [
            run_step(entry, params={"plus": plus}, kind="model", code_paths=code, launcher=launcher, task_id=f"m{plus}")
            for plus in (0, 100)
        ]
        first, second = (ServedVersion.of(each, n, f"/{n}", 70 if n == 1 else 30) for n, each in enumerate(models, 1))
        canary = replace(second, since="2020-01-01T00:00:00+00:00")
        write_record(run_step.store, "churn", ModelRecord(champion=first, challenger=canary))
        self.examples = {day: self._examples(day) for day in DAYS}

    def _examples(self, day: int) -> Artifact:
        producer, store = Producer("nightly", f"day-{day}", "prepare"), self.runner.store
        with store.create(store.address(producer, "examples"), "examples", producer) as writer:
            (writer.path / "rows").mkdir()
            for number in range(2):
                rows = range(number * ROWS // 2, (number + 1) * ROWS // 2)
                columns = {"id": [f"c{row}" for row in rows], "x": pa.array([day + row / ROWS for row in rows], "f4")}
                pq.write_table(pa.table(columns), writer.path / "rows" / f"part-{number:05}.parquet")
            window = [f"2026-11-0{day}T00:00:00+00:00", f"2026-11-0{day + 1}T00:00:00+00:00"]
            return writer.commit(
                rows={"rows": RowCounts(ROWS, ROWS)}, properties={"splits": ["rows"], "key": "id", "window": window}
            )

    def start(self, day: int) -> Any:
        """Starts a worker that runs both tasks of a day."""
        (self.folder / "pid").unlink(missing_ok=True)
        facts = (self.runner.store.root, self.runner.runtime, self.launcher, self.services, self.folder / "pid")
        database, examples = os.environ["AIRFLOW_CONN_WAREHOUSE"], self.examples[day].to_dict()
        worker = WORKERS.Process(target=work, args=(*facts, database, f"day-{day}", examples))
        worker.start()
        return worker

    def run(self, day: int) -> None:
        worker = self.start(day)
        worker.join()
        assert worker.exitcode == 0

    def kill(self, kind: str, worker: Any) -> bool:
        """Kills the worker, its step, or its connection of the database; returns whether there was one."""
        if kind == "database":
            cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'"
            return bool(self.database.execute(f"{cut} AND pid <> pg_backend_pid()").fetchall())
        try:
            os.kill(worker.pid if kind == "worker" else int((self.folder / "pid").read_text()), signal.SIGKILL)
        except (FileNotFoundError, ValueError, ProcessLookupError):
            return False
        return True

    def state(self) -> tuple[list[Any], dict[str, str]]:
        """Returns the rows of the table, and the digests of the captured files by name."""
        rows = self.database.execute("SELECT * FROM scores ORDER BY hops_batch, id").fetchall()
        files = (self.folder / "captured" / "churn").glob("[!.]*.parquet")
        return rows, {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}

    def check(self, days: set[int]) -> None:
        """Compares the rows of the table and the captured rows with those of the days that were scored."""
        rows, files = self.state()
        expected = Counter((f"c{row}", f"nightly/day-{day}") for day in days for row in range(ROWS))
        written = Counter((id_, batch.removesuffix("/score/predictions")) for id_, _, _, batch, _ in rows)
        assert written == expected
        captured = pa.concat_tables([pq.read_table(self.folder / "captured" / "churn" / name) for name in files])
        ids = Counter(captured["request_id"].to_pylist())
        assert ids == Counter(f"c{row}@2026-11-0{day + 1}T00:00:00+00:00" for day in days for row in range(ROWS))
        versions = dict(zip(captured["request_id"].to_pylist(), captured["version"].to_pylist(), strict=True))
        for id_, probability, version, batch, _ in rows:
            day = int(batch.split("/")[1].removeprefix("day-"))
            assert version == versions[f"{id_}@2026-11-0{day + 1}T00:00:00+00:00"] == (2 if probability > 50 else 1)


def work(
    root: str,
    runtime: Path,
    launcher: Any,
    services: dict[str, str],
    pid: Path,
    database: str,
    run: str,
    examples: dict[str, Any],
) -> None:
    """Runs both tasks, as a worker of Airflow does."""
    os.environ["AIRFLOW_CONN_WAREHOUSE"] = database
    runner, ids = StepRunner(root, runtime), {"dag_id": "nightly", "run_id": run, "launcher": launcher}
    scores = runner(
        "scored_rows:score",
        params={"pid": str(pid), "model_name": "churn"},
        inputs={"examples": Artifact.from_dict(examples)},
        kind="predictions",
        code_paths=(str(Path(__file__).parent),),
        services=services,
        task_id="score",
        **ids,
    )
    table = {"table": Table(conn_id="warehouse", name="scores").to_dict()}
    runner(
        "airflow_hops.extensions.tables.ml.write.stage:run", params=table, inputs={"rows": scores}, kind="table_write",
        task_id="write", **ids,
    )  # fmt: skip


@campaign("kills", 3, 0)
@pytest.mark.timeout(7200)
def test_each_row_is_scored_and_written_once(
    kills: int,
    pytestconfig: pytest.Config,
    tmp_path: Path,
    run_step: StepRunner,
    warm_launcher: Any,
    postgres: Any,  # noqa: F811
) -> None:
    nightly, draw, days = Nightly(tmp_path, run_step, warm_launcher, postgres), random.Random(79), {DAYS[0]}
    nightly.run(DAYS[0])
    begun = time.monotonic()
    nightly.run(DAYS[0])
    nightly.check(days)
    longest_s, done, kinds = time.monotonic() - begun, Counter[str](), ["database", "step", "worker"]
    while done.total() < (kills or pytestconfig.getoption("kills")):
        day, kind = draw.choice(DAYS), kinds[done.total() % 3]
        worker = nightly.start(day)
        worker.join(0 if kind == "database" else draw.uniform(0, longest_s))
        hit = False
        while worker.is_alive() and not hit:  # a connection lasts for a moment
            hit = nightly.kill(kind, worker)
            worker.join(draw.uniform(0, 0.05))
        done[kind] += hit
        worker.join()
        if worker.exitcode != 0:
            nightly.run(day)  # as Airflow tries the task again
        days.add(day)
        nightly.check(days)
    print(f"kills: {dict(done)}")
    state = nightly.state()
    for day in days:
        nightly.run(day)
    assert nightly.state() == state, "cleared tasks change nothing"
