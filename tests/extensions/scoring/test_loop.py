"""The scoring DAG of a training loop: its tasks, its windows, and what is refused when it is parsed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pendulum
import pyarrow.parquet as pq
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models import DagModel, DagRun
from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    DeltaDataIntervalTimetable,
    PartitionedAssetTimetable,
    StartOfDayMapper,
)
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import DagRunInfo, TimeRestriction
from airflow.utils.session import create_session

from airflow_hops import BadInput, Source, training_loop
from airflow_hops.core.errors import ConnectionNotFound
from airflow_hops.extensions.scoring.operators import loop
from airflow_hops.extensions.scoring.operators.run_windows import RunWindow, run_window, silent_after
from airflow_hops.operators.retraining_loop import dag_of
from airflow_hops.runner.settings import read_settings
from tests.extensions.tables import conftest as databases

postgres, postgres_port = databases.postgres, databases.postgres_port
ROWS = Source("/lake/today/*.parquet", time_column="at")
CHURN: dict[str, Any] = {
    "sources": {"events": Source("/lake/events.csv", time_column="at"), "shops": "/lake/shops.csv"},
    "prepare": {"prepare": "churn.prepare:prepare", "problem": "binary", "reject": {"no shop": "shop IS NULL"}},
    "label": "churned",
    "key": "customer",
    "time": "at",
    "newest": 3,
    "train": "churn.model:train",
}
FILE = """
from airflow_hops import Drift, RetrainingPolicy, Source, training_loop
from airflow_hops.extensions.tables import Table

dag = training_loop("churn", sources={"events": "/t.csv"}, prepare="churn.prepare:prepare", label="y", key="customer",
                    train="churn.model:train", policy=RetrainingPolicy(when=Drift()),
                    score={"rows": Source("/today.csv"), "to": Table(conn_id="dwh", name="churn_scores")})
"""


def parse(tmp_path: Path, text: str = FILE) -> DagBag:
    (tmp_path / "loop.py").write_text(text)
    (tmp_path / "churn").mkdir(exist_ok=True)
    for name in ("prepare", "model"):
        (tmp_path / "churn" / f"{name}.py").write_text("from .others import *\n")
    bag = DagBag(tmp_path / "loop.py")
    assert bag.import_errors == {}
    return bag


def test_loop_makes_the_dag_that_scores(tmp_path: Path) -> None:
    bag = parse(tmp_path)
    dag: Any = bag.dags["churn_scoring"]
    assert {task.task_id: task.upstream_task_ids for task in dag.tasks} == {
        "ingest": set(), "prepare": {"ingest"}, "score": {"prepare"}, "write": {"score"},
    }  # fmt: skip
    assert {task.hops_conn_id for each in bag.dags.values() for task in each.tasks} == {"hops_batch"}
    assert "infra_validate" not in bag.dags["churn_training"].task_ids, "it starts a server"
    asked = training_loop("churn", **CHURN, score={"rows": ROWS}, infra_validate={})
    assert isinstance(asked, DAG) and "infra_validate" in asked.task_ids
    prepare, score, write = (dag.get_task(name) for name in ("prepare", "score", "write"))
    assert (prepare.label_column, prepare.key, score.model_name, score.columns) == (
        None,
        "customer",
        "churn",
        ["customer"],
    )
    assert write.table["uri"] == "sql://dwh/churn_scores"
    assert {asset.name for asset in write.outlets} == {"churn_scored", "churn_scoring.write"}
    assert dag.schedule == CronDataIntervalTimetable("@daily", timezone="UTC")
    monitor: Any = bag.dags["churn_monitoring"]
    assert [asset.name for asset in monitor.schedule.asset_condition.objects] == ["churn_scoring.score"]
    assert monitor.get_task("skew").silent_after == timedelta(days=3)
    # A description with an address in memory would make each parse a new version of the DAG.
    again = parse(tmp_path).dags["churn_scoring"]
    assert DagSerialization.to_dict(dag) == DagSerialization.to_dict(again)


def scoring(score: Any, **prepare: Any) -> Any:
    """The scoring DAG of a loop of this file."""
    prepare = {**CHURN["prepare"], "label": "churned", "key": "customer", "time": "at", "newest": 3, **prepare}
    with pytest.MonkeyPatch.context() as patch:
        made: list[Any] = []
        patch.setattr(loop, "dag_of", lambda file, **own: made.append(dag_of(file, **own)) or made[0])
        loop.scoring_dag("churn", __file__, {}, CHURN["sources"], prepare, **score)
    return made[0]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ROWS, {"events": "/lake/today/*.parquet", "shops": "/lake/shops.csv"}),
        ("/lake/today.csv", {"events": "/lake/today.csv", "shops": "/lake/shops.csv"}),
        ({"uri": "/a.csv", "delimiter": ";"}, {"events": "/a.csv", "shops": "/lake/shops.csv"}),
        ({"events": "/a.csv", "shops": "/b.csv"}, {"events": "/a.csv", "shops": "/b.csv"}),
    ],
)
def test_rows_take_the_place_of_the_main_table(rows: Any, expected: dict[str, str]) -> None:
    dag = scoring({"rows": rows, "score": {"batch_rows": 9}, "dag_id": "own", "max_active_runs": 4})
    assert (dag.dag_id, dag.max_active_runs) == ("own", 4)
    ingest, prepare, score = (dag.get_task(name) for name in ("ingest", "prepare", "score"))
    assert {table: source["uri"] for table, source in ingest.sources.items()} == expected
    assert (prepare.problem, prepare.newest, prepare.reject) == (None, None, {"no shop": "shop IS NULL"})
    assert (score.columns, score.batch_rows) == (["customer", "at"], 9)
    assert [asset.name for asset in score.outlets] == ["churn_scored", "own.score"]


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ({}, "score: rows is missing; expected the source of the rows to score"),
        ({"rows": ROWS, "tabel": 1}, "score: there is no argument 'tabel'"),
        ({"rows": ROWS, "shadow": True}, "it is one of the task 'score': score={'score': {'shadow': …}}"),
        ({"rows": ROWS, "window_start": "x"}, "it is one of the task 'ingest': score={'ingest': {'window_start': …}}"),
        ({"rows": ROWS, "ingest": {"window_start": "2026-01-01"}}, "score: ingest={'window_start': '2026-01-01'} con"),
        ({"rows": ROWS, "score": {"model_name": "m"}}, "score={'model_name': 'm'} contradicts model_name='churn'"),
        ({"rows": ROWS, "score": {"shadows": True}}, "shadows"),
        ({"rows": ROWS, "prepare": {"label": "y"}}, "score: prepare={'label': 'y'} contradicts label=None"),
        ({"rows": ROWS, "prepare": 3}, "score: prepare is 3, expected a mapping"),
        ({"rows": ROWS, "write": {"batch": "b"}}, "score: write has no effect without the table to write to"),
        ({"rows": ROWS, "to": "s3://lake/scores"}, "table: uri is 's3://lake/scores'"),
        ({"rows": ROWS, "to": 3}, "table is 3, expected a Table, or text, or a mapping"),
        ({"rows": {"events": ROWS, "shop": ROWS}}, "rows has a table 'shop', which the sources lack; did you"),
        ({"rows": ROWS, "asset": "scores"}, "score: asset is 'scores', expected a Asset"),
        ({"rows": ROWS, "file": "x"}, "score: there is no argument 'file'"),
        ({"rows": ROWS, "key": "id"}, "it is one of the task 'prepare'"),
        ("rows", "score is 'rows', expected"),
    ],
)  # fmt: skip
def test_wrong_argument_is_named(score: Any, expected: str) -> None:
    with pytest.raises((BadInput, TypeError)) as caught:
        training_loop("churn", **CHURN, score=score)
    assert expected in str(caught.value)


def test_a_loop_without_a_key_or_its_extension_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    keyless = {**CHURN, "key": None}
    with pytest.raises(BadInput, match="there is no key, by which a canary gets its share"):
        training_loop("churn", **keyless, score={"rows": ROWS})
    assert scoring({"rows": ROWS, "score": {"shadow": True}}, key=None)
    with DAG("own", schedule=None), pytest.raises(BadInput, match="score has no effect within another DAG"):
        training_loop("churn", **CHURN, score={"rows": ROWS})
    groups: dict[str, Any] = {}
    monkeypatch.setattr(import_module("airflow_hops.operators.training_loop"), "extensions", groups.get)
    groups["airflow_hops.loops"] = {}
    with pytest.raises(BadInput, match="score needs the extension 'scoring', which this installation lacks"):
        training_loop("churn", **CHURN, score={"rows": ROWS})


class Run:
    """A run of Airflow, for its window."""

    run_id = "manual"

    def __init__(self, partition: str | None = None, start: Any = None, end: Any = None) -> None:
        self.partition_key, self.data_interval_start, self.data_interval_end = partition, start, end


DAY, NEXT = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC)
BERLIN = CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin", run_offset=-1)
MAPPED = PartitionedAssetTimetable(assets=Asset("a"), default_partition_mapper=StartOfDayMapper(timezone="Asia/Tokyo"))
BY_ASSET = PartitionedAssetTimetable(assets=Asset("a"))


@pytest.mark.parametrize(
    ("run", "schedule", "start", "end", "key"),
    [
        (Run(None, DAY, NEXT), None, "2026-11-01T00", "2026-11-02T00", "2026-11-01T00:00:00|2026-11-02T00:00:00"),
        (Run("2026-11-01T00:00:00|2026-11-02T12:00:00"), None, "2026-11-01T00", "2026-11-02T12", None),
        # A local day of 25 hours, and one of 23.
        (Run("2026-10-25T00:00:00"), BERLIN, "2026-10-24T22", "2026-10-25T23", None),
        (Run("2026-03-29T00:00:00"), BERLIN, "2026-03-28T23", "2026-03-29T22", None),
        (Run("2026-11-01"), MAPPED, "2026-10-31T15", "2026-11-01T15", None),
        (Run("2026-11-01"), BY_ASSET, "2026-11-01T00", "2026-11-02T00", None),
        (Run("2026-11-01T07"), BY_ASSET, "2026-11-01T07", "2026-11-01T08", None),
        (Run("2026-11-02 (W45)"), BY_ASSET, "2026-11-02T00", "2026-11-09T00", None),
        (Run("2026-02"), BY_ASSET, "2026-02-01T00", "2026-03-01T00", None),
        (Run("2027"), BY_ASSET, "2027-01-01T00", "2028-01-01T00", None),
    ],
)
def test_window_of_a_run(run: Any, schedule: Any, start: str, end: str, key: str | None) -> None:
    window = run_window(run, schedule, has_time=True)
    assert (window.start[:13], window.end[:13], window.key) == (start, end, key or run.partition_key)


@pytest.mark.parametrize(
    "schedule",
    [
        *(DeltaDataIntervalTimetable(each) for each in (timedelta(days=1), timedelta(hours=7), timedelta(weeks=1))),
        *(CronDataIntervalTimetable(each, timezone="Europe/Berlin") for each in ("@daily", "30 2 * * *", "0 * * * *")),
        *(CronPartitionTimetable(each, timezone="Europe/Berlin", run_offset=-1) for each in ("0 0 * * *", "0 * * * *")),
    ],
    ids=lambda each: f"{type(each).__name__}-{getattr(each, 'expression', '') or each.delta}",
)
def test_windows_of_a_schedule_are_equal_or_apart(schedule: Any) -> None:
    """However Airflow starts a run: by its schedule, by hand, or as a backfill from any moment on."""
    dag: Any = DagSerialization.from_dict(DagSerialization.to_dict(DAG("windows", schedule=schedule)))
    infos: list[Any] = []
    for month in (3, 10):  # with a change of the clocks
        first = pendulum.datetime(2026, month, 20, 5, 17, 3, 9)
        limits, last = TimeRestriction(earliest=first, latest=None, catchup=True), first.add(days=20)
        info = dag.timetable.next_dagrun_info_v2(last_dagrun_info=None, restriction=limits)
        while info.run_after < last:
            infos.append(info)
            info = dag.timetable.next_dagrun_info_v2(last_dagrun_info=info, restriction=limits)
        infos += dag.iter_dagrun_infos_between(first.add(hours=31), last)
        if not dag.timetable.partitioned:  # whose runs by hand have a key, or no window
            moments = (first.add(hours=each) for each in (0, 40, 207))
            intervals = (dag.timetable.infer_manual_data_interval(run_after=moment) for moment in moments)
            infos += (DagRunInfo.interval(*interval) for interval in intervals)
    runs = (Run(info.partition_key, *(info.data_interval or ())) for info in infos)
    windows = [run_window(run, schedule, has_time=True) for run in runs]
    ordered = sorted({(datetime.fromisoformat(window.start), datetime.fromisoformat(window.end)) for window in windows})
    assert all(one[1] <= other[0] for one, other in pairwise(ordered))
    assert len(ordered) < len(infos), "some are the same"


def test_schedule_of_assets_or_times_has_windows_of_the_times() -> None:
    daily = AssetOrTimeSchedule(timetable=DeltaDataIntervalTimetable(timedelta(days=1)), assets=[Asset("a")])
    window = scoring({"rows": ROWS, "schedule": daily}).user_defined_macros["run_window"]
    assert window(Run(None, DAY + timedelta(hours=15), NEXT + timedelta(hours=15))) == window(Run(None, DAY, NEXT))


def test_run_without_a_window_takes_all_rows_or_is_refused() -> None:
    for run in (Run(), Run(None, DAY, DAY)):
        assert run_window(run, None, has_time=False) == RunWindow()
    with pytest.raises(BadInput, match="run 'manual' has neither a data interval nor a partition"):
        run_window(Run(), None, has_time=True)
    moment = run_window(Run(None, DAY, DAY), None, has_time=True)
    assert moment.start == moment.end, "IngestOperator refuses it, and names the schedule"
    for key in ("emea", "2026-11-01T00:00:00", ""):
        with pytest.raises(BadInput, match=f"partition key '{key}' does not say when the partition begins and ends"):
            run_window(Run(key), BY_ASSET, has_time=True)


@pytest.mark.parametrize(
    ("schedule", "days"),
    [
        (CronDataIntervalTimetable("@hourly", timezone="UTC"), 3),
        (CronDataIntervalTimetable("*/5 8-17 * * 1-5", timezone="UTC"), 5),
        (CronDataIntervalTimetable("@weekly", timezone="UTC"), 14),
        (CronDataIntervalTimetable("*/5 * 1 * *", timezone="UTC"), 60),
        (DeltaDataIntervalTimetable(timedelta(days=10)), 20),
        (BY_ASSET, None),
        (None, None),
    ],
)
def test_monitor_waits_as_long_as_the_schedule_does(schedule: Any, days: int | None) -> None:
    waits = silent_after(schedule)
    assert (None if waits is None else waits.days) == days


def test_connection_named_for_the_kind_is_the_default_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With its store and environment, and without its server."""
    settings = read_settings("hops_batch")
    assert settings.services["serving_kind"] == "batch"
    extra = {"store": str(tmp_path), "serving_base_path": "/models", "serving_rest_port": 8501}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    settings = read_settings("hops_batch")
    assert settings.store == f"file://{tmp_path}"
    assert settings.services["serving_base_path"] == f"file://{tmp_path}/_serving/models"
    assert "serving_rest_port" not in settings.services
    for name in ("hops_bundled", "batch", "hops_batches"):
        with pytest.raises(ConnectionNotFound):
            read_settings(name)


def rows_of(day: int, count: int, first: int = 0) -> list[str]:
    return [f"c{first + n},2026-11-{day:02}T{n % 24:02}:00:00Z,{n % 10}" for n in range(count)]


def write_rows(folder: Path, name: str, header: str, rows: Iterable[str]) -> None:
    (folder / name).write_text("\n".join([header, *rows]) + "\n")


@pytest.mark.runtime
def test_windows_are_scored_once_and_kept_apart(
    run_dag: Any, postgres: Any, monkeypatch: pytest.MonkeyPatch, runtime: Path
) -> None:
    """Trained, deployed, scored and written to a table, with no connection but that of the table."""
    folder, columns = Path(os.environ["AIRFLOW_HOME"], "nightly"), "customer,at,spent"
    folder.mkdir(exist_ok=True)
    table = "(customer text, at int8, probability float8, version int8, hops_batch text, hops_folder text)"
    postgres.execute(f"CREATE TABLE scores {table}")

    def run(dag_id: str, day: int = 1, hour: int = 0) -> dict[str, str]:
        when = datetime(2026, 11, day + 1, hour, hour, tzinfo=UTC)
        made = run_dag(dag_id, {}, "tests/extensions/scoring/dags", logical_date=when)
        return {each.task_id: str(each.state) for each in made.get_task_instances()}

    def written() -> dict[str, list[Any]]:
        batches: dict[str, list[Any]] = {}
        for row in postgres.execute("SELECT * FROM scores ORDER BY customer").fetchall():
            batches.setdefault(row[4], []).append(row)
        return batches

    def captured() -> Any:
        return pq.read_table(folder.parent / "hops" / "_serving" / "captured" / "nightly").to_pandas()

    labelled = (f"{row},{number % 10 // 5}" for number, row in enumerate(rows_of(1, 600)))
    write_rows(folder, "customers.csv", f"{columns},left", labelled)
    write_rows(folder, "today.csv", columns, [*rows_of(1, 120), *rows_of(2, 30, 500)])
    assert set(run("nightly_scoring").values()) == {"skipped"}, "there is no version yet"
    assert set(run("nightly_training").values()) == {"success"}
    for column in ("probability", "hops_folder", "at"):
        postgres.execute(f"ALTER TABLE scores RENAME {column} TO other")
        assert set(run("nightly_scoring").values()) == {"failed", "upstream_failed"}
        postgres.execute(f"ALTER TABLE scores RENAME other TO {column}")
        assert not list((folder.parent / "hops" / "_serving").glob("captured/**/*.parquet")), "nothing was scored"
    assert set(run("nightly_scoring").values()) == {"success"}
    first, second = (f"2026-11-0{day}T00:00:00|2026-11-0{day + 1}T00:00:00" for day in (1, 2))
    result = written()
    assert {batch: len(rows) for batch, rows in result.items()} == {first: 120}
    assert {row[3] for row in result[first]} == {1} and all(0 <= row[2] <= 1 for row in result[first])
    assert len(captured()) == 120

    claims = folder.parent / "hops" / "_state" / "scored_windows"
    for claim in claims.glob("*/*.json"):
        claim.with_name(f".{claim.name}.0123456789ab").touch()  # of a worker that was killed
    # The window again, also by hand at 15:15: nothing changes, and the next one leaves it as it is.
    for hour in (0, 15):
        assert set(run("nightly_scoring", 1, hour).values()) == {"success"}
    assert written() == result and len(captured()) == 120
    assert set(run("nightly_scoring", 2).values()) == {"success"}
    assert {batch: len(rows) for batch, rows in written().items()} == {first: 120, second: 30}
    assert written()[first] == result[first] and len(captured()) == 150

    # Rows that were withdrawn leave the table, and the captured rows.
    write_rows(folder, "today.csv", columns, rows_of(2, 30, 500))
    assert set(run("nightly_scoring").values()) == {"success"}
    assert first not in written() and len(captured()) == 30

    # Other DAGs that score the window, or half of it, into the same table are refused before they read anything.
    rows = written()
    claimed = sorted(claims.glob("*/*.json"))
    for dag_id, hour in (("other_scoring", 0), ("noon_scoring", 12)):
        assert run(dag_id, 2, hour) == {
            "ingest": "failed", "prepare": "upstream_failed", "score": "upstream_failed", "write": "upstream_failed",
        }, dag_id  # fmt: skip
        assert written() == rows and sorted(claims.glob("*/*.json")) == claimed
        assert len(captured()) == 30

    # Airflow starts the next team's DAG once for each window, with it as its partition.
    with create_session() as session:
        scheduler = SchedulerJobRunner(Job())
        scheduler._create_dagruns_for_partitioned_asset_dags(session)
        scheduler._create_dag_runs([session.get_one(DagModel, "nightly_partitions")], session)
        made = {name: DagRun.find(dag_id=name, session=session) for name in ("nightly_report", "nightly_partitions")}
        assert {run_window(each, BY_ASSET, has_time=True).key for each in made["nightly_report"]} == {first, second}
        (by_time,) = made["nightly_partitions"]
        assert datetime.fromisoformat(run_window(by_time, BERLIN, has_time=True).end) == by_time.run_after
