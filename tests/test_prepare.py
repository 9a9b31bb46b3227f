"""Prepare: raw tables to labelled examples, on Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.contract.artifacts import Artifact, BadInput, Producer, RowCounts
from airflow_hops.store import ArtifactStore

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

ORDERS = 2000
START = datetime(2024, 1, 1, tzinfo=UTC)


def write_snapshot(store: ArtifactStore) -> Artifact:
    """Orders, one every hour; the customers who made them; and two visits of each customer."""
    numbers = list(range(ORDERS))
    tables = {
        "orders": pa.table(
            {
                "order_id": [f"o{n}" for n in numbers],
                "placed_at": pa.array([START + timedelta(hours=n) for n in numbers], pa.timestamp("us", "UTC")),
                "returned": [int(n % 7 == 0) for n in numbers],
                "customer": [n % 10 for n in numbers],
                "amount": [float(n % 1000) for n in numbers],
                "number": numbers,
                "text": [f"text of {n}" if n % 3 else None for n in numbers],
            }
        ),
        "customers": pa.table({"customer": list(range(9)), "age": [20 + n for n in range(9)]}),
        "visits": pa.table({"customer": [n % 10 for n in range(20)], "page": list(range(20))}),
    }
    with store.create(store.uri("tests", "snapshot"), "snapshot", Producer()) as writer:
        for name, table in tables.items():
            (writer.path / name).mkdir()
            pq.write_table(table, writer.path / name / "part-00000.parquet")
        window = [START.isoformat(), (START + timedelta(hours=ORDERS)).isoformat()]
        return writer.commit(
            rows={name: RowCounts(table.num_rows, table.num_rows) for name, table in tables.items()},
            properties={"window": window, "tables": list(tables)},
        )


CASES: dict[str, dict[str, Any]] = {
    "good": {"newest_s": 100 * 3600},
    "good_again": {"prepare": "prepare_cases:good", "newest_s": 100 * 3600},
    "whole_window": {"prepare": "prepare_cases:good"},
    "no_key_no_time": {"prepare": "prepare_cases:plain", "key": None, "time": None},
    "no_key_no_time_again": {"prepare": "prepare_cases:plain_in_another_order", "key": None, "time": None},
    "key_alone": {"prepare": "prepare_cases:keyed", "time": None},
    "time_alone": {"prepare": "prepare_cases:timed", "key": None, "newest_s": 100 * 3600},
    "no_features": {},
    "newest_without_time": {"prepare": "prepare_cases:keyed", "time": None, "newest_s": 3600},
    "untidy": {"reject": {"a hundred": "number < 100"}},
    "raising": {},
    "missing_table": {},
    "missing_column": {},
    "raising_in_executor": {},
    "no_frame": {},
    "array_column": {},
    "timestamp_feature": {},
    "twice": {},
    "duplicating_join": {},
    "inner_join": {},
    "one_class": {},
    "all_rejected": {"max_rejected": 1},
    "classes": {},
    "too_many_rejected": {"prepare": "prepare_cases:untidy", "reject": {"a quarter": "number < 500"}},
    "as_many_as_allowed": {
        "prepare": "prepare_cases:good",
        "reject": {"a quarter": "number < 500"},
        "max_rejected": 0.25,
    },
    "no_label": {"prepare": "prepare_cases:good", "label": "price"},
    "no_key": {"prepare": "prepare_cases:good", "key": "id"},
    "no_time": {"prepare": "prepare_cases:good", "time": "at"},
    "text_as_time": {"prepare": "prepare_cases:good", "time": "text"},
    "no_table": {"prepare": "prepare_cases:good", "table": "invoices"},
    "no_module": {"prepare": "nowhere:prepare"},
}


@pytest.fixture(scope="module")
def cases(shared_run_step: Any, runtime: Path) -> dict[str, Any]:
    """All cases, run in one Spark application."""
    from airflow_hops.launchers.spark import SparkLauncher

    checks = Path(__file__).parent / "runtime_checks"
    found: dict[str, Any] = shared_run_step(
        "prepare_cases:run_all",
        params={"cases": CASES},
        inputs={"tables": write_snapshot(shared_run_step.store)},
        code_paths=(str(checks),),
        launcher=SparkLauncher(runtime, "spark_local"),
    )
    return found


def rows_of(store: ArtifactStore, artifact: dict[str, Any], split: str) -> pa.Table:
    return pq.read_table(store.local(Artifact.from_dict(artifact)) / split)


def test_every_row_is_in_one_split_or_rejected_for_a_reason(cases: Any, shared_run_step: Any) -> None:
    good = cases["good"]
    assert good["properties"] == {
        "window": [START.isoformat(), (START + timedelta(hours=ORDERS)).isoformat()],
        "label": "returned",
        "key": "order_id",
        "time": "placed_at",
        "splits": ["train", "eval", "newest"],
    }
    assert good["rows"]["orders"] == {"rows_in": ORDERS, "rows_out": ORDERS - 18, "rejected": {"too large / odd": 18}}
    splits = {name: rows_of(shared_run_step.store, good, name) for name in ("train", "eval", "newest")}
    assert {name: table.num_rows for name, table in splits.items()} == {
        name: good["rows"][name]["rows_out"] for name in splits
    }
    keys = [key for table in splits.values() for key in table["order_id"].to_pylist()]
    assert sorted(keys) == sorted(f"o{n}" for n in range(ORDERS) if n % 1000 <= 990)
    newest_from = int((START + timedelta(hours=ORDERS - 100)).timestamp())
    assert min(splits["newest"]["placed_at"].to_pylist()) == newest_from
    assert max(splits["train"]["placed_at"].to_pylist() + splits["eval"]["placed_at"].to_pylist()) < newest_from
    assert 0.16 < splits["eval"].num_rows / (splits["eval"].num_rows + splits["train"].num_rows) < 0.24
    # The customers' ages have no row for the tenth customer: an integer with gaps is a float, in every split.
    assert {table.schema.field("age").type for table in splits.values()} == {pa.float64()}
    assert splits["train"].column_names[:3] == ["order_id", "placed_at", "returned"]
    assert "reject_reason" not in splits["train"].column_names
    folder = shared_run_step.store.local(Artifact.from_dict(good))
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert names == sorted(
        ["manifest.json", *(f"{s}/part-0000{n}.parquet" for s in ("train", "eval", "newest") for n in (0, 1))]
    )


def test_what_cannot_be_an_example_is_rejected_for_its_first_reason(cases: Any, shared_run_step: Any) -> None:
    rows = cases["untidy"]["rows"]["orders"]
    # Of each twenty rows behind the first hundred, six lack something.
    assert rows["rejected"] == {
        "a hundred": 95,
        "asked": 100,
        "order_id is missing": 95,
        "placed_at is missing": 95,
        "returned is missing": 190,
        "duplicate key": 19,
    }
    assert rows["rows_in"] == ORDERS
    train = rows_of(shared_run_step.store, cases["untidy"], "train")
    types = {name: str(type_) for name, type_ in zip(train.column_names, train.schema.types, strict=True)}
    assert types == {
        "order_id": "string",
        "placed_at": "int64",
        "returned": "int64",
        "maybe_integer": "double",
        "not_a_number": "float",
        "price": "double",
        "is_large": "int64",
        "number": "int64",
        "text": "string",
    }
    assert set(train["not_a_number"].to_pylist()) == {1.0, None}
    evaluation = rows_of(shared_run_step.store, cases["untidy"], "eval")
    keys = train["order_id"].to_pylist() + evaluation["order_id"].to_pylist()
    assert len(keys) == len(set(keys))
    assert cases["as_many_as_allowed"]["rows"]["orders"]["rejected"]["a quarter"] == 500
    # Rows 0 and 1 of each fifty have one key: the earlier one stays, unless it is rejected for its own sake.
    numbers = set(train["number"].to_pylist() + evaluation["number"].to_pylist())
    assert {150, 151, 101, 100} & numbers == {150, 101}


def test_a_row_never_changes_side_and_equal_rows_give_equal_files(cases: Any, shared_run_step: Any) -> None:
    store = shared_run_step.store
    assert cases["good_again"]["fingerprint"] == cases["good"]["fingerprint"]
    assert cases["good_again"]["uri"] != cases["good"]["uri"]
    assert cases["whole_window"]["properties"]["splits"] == ["train", "eval"]
    sides = {
        name: {split: set(rows_of(store, cases[name], split)["order_id"].to_pylist()) for split in ("train", "eval")}
        for name in ("good", "whole_window")
    }
    for split in ("train", "eval"):
        assert sides["good"][split] < sides["whole_window"][split]
    # Spark's own files hold numbers of chance in their footers.
    file = store.local(Artifact.from_dict(cases["good"])) / "train" / "part-00000.parquet"
    assert pq.read_metadata(file).created_by.startswith("parquet-cpp-arrow")


def test_rows_without_key_are_split_by_their_features_the_same_in_every_run(cases: Any, shared_run_step: Any) -> None:
    store, found = shared_run_step.store, cases["no_key_no_time"]
    assert (found["properties"]["key"], found["properties"]["time"]) == (None, None)
    assert found["rows"]["orders"] == {"rows_in": ORDERS, "rows_out": ORDERS, "rejected": {}}
    assert found["fingerprint"] == cases["no_key_no_time_again"]["fingerprint"]
    train, evaluation = (rows_of(store, found, split) for split in ("train", "eval"))
    assert train.column_names == ["returned", "customer", "number"]
    assert 0.16 < evaluation.num_rows / ORDERS < 0.24
    # Every row stands twice, with one label and the other: its features are on one side.
    sides = [set(table["number"].to_pylist()) for table in (train, evaluation)]
    assert not sides[0] & sides[1] and len(sides[0] | sides[1]) == ORDERS // 2


def test_a_key_needs_no_time_and_a_time_no_key(cases: Any, shared_run_step: Any) -> None:
    store = shared_run_step.store
    keyed, timed = cases["key_alone"], cases["time_alone"]
    assert keyed["rows"]["orders"]["rejected"] == {"duplicate key": 100}
    train = rows_of(store, keyed, "train")
    assert train.column_names[:2] == ["order_id", "returned"]
    by_key = set(train["order_id"].to_pylist())
    assert by_key.isdisjoint(rows_of(store, cases["whole_window"], "eval")["order_id"].to_pylist())
    assert timed["properties"]["splits"] == ["train", "eval", "newest"]
    assert timed["rows"]["newest"]["rows_out"] == 100
    times = rows_of(store, timed, "newest")["placed_at"].to_pylist()
    assert min(times) == int((START + timedelta(hours=ORDERS - 100)).timestamp())


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("no_features", "prepare returned no features, only order_id, placed_at, returned"),
        ("newest_without_time", "newest needs a time; name the column of the time, or leave newest out"),
        ("raising", "prepare_cases:raising raised ZeroDivisionError: no orders per day"),
        ("missing_table", "prepare_cases:missing_table raised KeyError: 'invoices'"),
        ("missing_column", "prepare_cases:missing_column raised AnalysisException: [UNRESOLVED_COLUMN"),
        ("raising_in_executor", "a Python function in prepare raised: KeyError: 'rate of the day'"),
        ("no_frame", "prepare_cases:no_frame returned a int, expected a Spark DataFrame"),
        ("array_column", "prepare's column 'words' is of type array<string>; expected"),
        ("timestamp_feature", "prepare's column 'also_at' is of type timestamp; expected"),
        ("twice", "prepare returned two columns 'customer'"),
        ("duplicating_join", "table 'orders' has 2000 rows, 4000 came out; a join duplicates rows"),
        ("inner_join", "table 'orders' has 2000 rows, 600 came out; a filter or an inner join drops rows"),
        ("one_class", "label 'returned' is 1 in all"),
        (
            "classes",
            "label 'returned' is neither 0 nor 1 in 1691 rows: 2 in 154, 3 in 154, 4 in 154, 5 in 154, 6 in 154, 8 in "
            "154, 9 in 154, 10 in 154, 7 in 153, 11 in 153 and 1 more; a label of two classes is supported, 0 and 1, "
            "or false and true: derive one in prepare()",
        ),
        (
            "too_many_rejected",
            "table 'orders': 475 of 2000 rows (23.8%) are rejected for 'a quarter', more than max_rejected=0.1 allows; "
            "rejected in all: a quarter 475, returned is missing 150, ",
        ),
        ("no_label", "label is 'price', but prepare returned no such column; it has customer, order_id"),
        ("no_key", "key is 'id', but prepare returned no such column"),
        ("no_time", "time is 'at', but prepare returned no such column"),
        ("text_as_time", "prepare's column 'text' is of type string; expected"),
        ("no_table", "table is 'invoices', which the snapshot does not have; it has orders, customers, visits"),
        ("no_module", "'nowhere:prepare': there is no module 'nowhere'"),
        ("all_rejected", "no rows are left in split 'train': 2000 rows in, 2000 rejected ({'closed': 2000})"),
    ],
)
def test_bad_user_code_is_named_and_leaves_no_artifact(cases: Any, case: str, expected: str) -> None:
    found = cases[case]
    assert expected in found.get("error", found)
    assert not found["retryable"]
    assert not found["exists"]


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runtime: Path) -> ArtifactStore:
    """The hops connection of a test's own store."""
    value = {"conn_type": "hops", "extra": {"store": str(tmp_path / "store"), "runtime": str(runtime)}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(value))
    return ArtifactStore(str(tmp_path / "store"))


def test_flights_become_examples_in_a_dag_run_and_come_from_the_cache_in_the_next(
    connection: ArtifactStore, run_dag: Any, flights_raw: Path
) -> None:
    conf = {"raw": str(flights_raw), "start": "2013-01-01", "end": "2013-02-01"}
    first, second = [run_dag("ingest_prepare", conf) for _ in range(2)]
    found = []
    for run in (first, second):
        tasks = {ti.task_id: ti for ti in run.get_task_instances()}
        assert {name: str(ti.state) for name, ti in tasks.items()} == {"ingest": "success", "prepare": "success"}
        found.append({name: ti.xcom_pull(task_ids=name) for name, ti in tasks.items()})
    assert [artifacts["prepare"]["cached"] for artifacts in found] == [False, True]
    assert [artifacts["ingest"]["cached"] for artifacts in found] == [False, True]
    examples = found[0]["prepare"]
    manifest = connection.manifest(examples["uri"])
    assert manifest.inputs["tables"][0].fingerprint == found[0]["ingest"]["fingerprint"]
    rows = manifest.rows["flights"]
    assert rows.rows_in == 26_865
    assert rows.rejected == {"cancelled": 512, "diverted or arrival not recorded": 85}
    january = pa.concat_tables(rows_of(connection, examples, split) for split in ("train", "eval", "newest"))
    assert january.num_rows == rows.rows_out == 26_865 - 597
    assert january["late"].to_pylist().count(1) == 6108

    flights = {row["flight_id"]: row for row in january.to_pylist()}
    assert flights["UA1545-EWR-2013-01-01"] == {
        "flight_id": "UA1545-EWR-2013-01-01",
        "scheduled_at": int(datetime(2013, 1, 1, 10, 15, tzinfo=UTC).timestamp()),
        "late": 0,
        "carrier": "UA",
        "origin": "EWR",
        "dest": "IAH",
        "plane_manufacturer": "BOEING",
        "scheduled_minute": 5 * 60 + 15,
        "scheduled_arrival_minute": 8 * 60 + 19,
        "weekday": 1,
        "origin_departures_hour": 2,
        "distance": 1400.0,
        "plane_age": 14.0,
        "plane_seats": 149.0,
        "temp": 39.02,
        "dewp": 28.04,
        "humid": 64.43,
        "wind_speed": pytest.approx(12.65858),
        "precip": 0.0,
        "pressure": 1011.9,
        "visib": 10.0,
        "dest_lat": pytest.approx(29.984433),
        "dest_lon": pytest.approx(-95.341442),
    }


def test_a_missing_spark_connection_is_named_and_not_taken_for_yarn(shared_run_step: Any, runtime: Path) -> None:
    from airflow_hops.launchers.spark import SparkLauncher

    with pytest.raises(BadInput, match=r"no Spark connection 'spark_nowhere'.*AIRFLOW_CONN_SPARK_NOWHERE"):
        shared_run_step("prepare_cases:run_all", launcher=SparkLauncher(runtime, "spark_nowhere"))


def test_no_java_is_one_line_that_says_what_to_install(
    shared_run_step: Any, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_hops.java import own_java
    from airflow_hops.launchers.spark import SparkLauncher

    if own_java(runtime) is not None:
        pytest.skip("the runtime environment has a Java of its own")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadInput, match=r"Spark 3.5 needs Java 8, 11, 17, found none; install one, or run") as failure:
        shared_run_step("prepare_cases:run_all", launcher=SparkLauncher(runtime, "spark_local"))
    assert "\n" not in str(failure.value)


def test_arguments_are_checked_when_the_dag_is_parsed() -> None:
    from airflow_hops.operators import PrepareOperator

    with pytest.raises(BadInput, match="eval_percent is 100, expected 0 to 99"):
        PrepareOperator(task_id="p", prepare="a:b", tables={}, label="l", key="k", time="t", eval_percent=100)
    with pytest.raises(BadInput, match="newest needs a time"):
        PrepareOperator(task_id="p", prepare="a:b", tables={}, label="l", newest=14)
    for value in (-0.1, 1.5, "10%", True):
        with pytest.raises(BadInput, match=f"max_rejected is {value!r}, expected a share from 0 to 1"):
            PrepareOperator(task_id="p", prepare="a:b", tables={}, label="l", key="k", time="t", max_rejected=value)
