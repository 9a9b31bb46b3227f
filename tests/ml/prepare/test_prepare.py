"""The prepare stage: raw tables to labelled examples, and what is said of user code at fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.errors import HopsError
from airflow_hops.ml import ingest
from airflow_hops.ml.prepare import stage
from airflow_hops.ml.statistics import stage as feature_statistics
from tests.ml.world import Flights, World

ORDERS = 2000
START = datetime(2024, 1, 1, tzinfo=UTC)


def write_snapshot(world: World, *, has_window: bool = True) -> Artifact:
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
    window = [START.isoformat(), (START + timedelta(hours=ORDERS)).isoformat()] if has_window else None
    return world.snapshot(tables, window=window)


COLUMNS = {"label": "returned", "key": "order_id", "time": "placed_at"}
NEWEST = {"newest_s": 100 * 3600}
Prepare = Callable[..., Artifact]


@pytest.fixture(scope="module")
def prepare(flights: Flights) -> Prepare:
    """Runs the stage with a function of prepare_cases, on DuckDB by default."""
    snapshot = write_snapshot(flights)

    def run(function: str, tables: Artifact = snapshot, **params: Any) -> Artifact:
        params = {"prepare": f"prepare_cases:{function}", "engine": "duckdb", **COLUMNS, **params}
        artifact: Artifact = flights.run(stage, tables=tables, **params)
        return artifact

    return run


@pytest.fixture(scope="module")
def good(prepare: Prepare) -> Artifact:
    return prepare("good", **NEWEST)


@pytest.fixture(scope="module")
def whole_window(prepare: Prepare) -> Artifact:
    return prepare("good")


def test_every_row_is_in_one_split_or_rejected_for_a_reason(good: Artifact, flights: Flights) -> None:
    columns = good.properties["columns"]
    assert (columns["order_id"], columns["amount"]) == ("string", "double")
    assert {name: value for name, value in good.properties.items() if name != "columns"} == {
        "window": [START.isoformat(), (START + timedelta(hours=ORDERS)).isoformat()],
        "label": "returned",
        "key": "order_id",
        "time": "placed_at",
        "splits": ["train", "eval", "newest"],
        "problem": "binary",
    }
    assert good.rows["orders"] == RowCounts(ORDERS, ORDERS - 18, {"too large / odd": 18})
    splits = {name: flights.rows(good, name) for name in ("train", "eval", "newest")}
    assert {name: table.num_rows for name, table in splits.items()} == {
        name: good.rows[name].rows_out for name in splits
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
    folder = flights.store.local(good)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert names == sorted(
        ["manifest.json", *(f"{s}/part-0000{n}.parquet" for s in ("train", "eval", "newest") for n in range(4))]
    )


def test_unusable_row_is_rejected_for_its_first_reason(prepare: Prepare, flights: Flights) -> None:
    untidy = prepare("untidy", reject={"a hundred": "number < 100"})
    rows = untidy.rows["orders"]
    # Of each twenty rows behind the first hundred, six lack something.
    assert rows.rejected == {
        "a hundred": 95,
        "asked": 100,
        "order_id is missing": 95,
        "placed_at is missing": 95,
        "returned is missing": 190,
        "duplicate key": 19,
    }
    assert rows.rows_in == ORDERS
    train = flights.rows(untidy, "train")
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
    evaluation = flights.rows(untidy, "eval")
    keys = train["order_id"].to_pylist() + evaluation["order_id"].to_pylist()
    assert len(keys) == len(set(keys))
    # Rows 0 and 1 of each fifty have one key: the earlier one stays, unless it is rejected for its own sake.
    numbers = set(train["number"].to_pylist() + evaluation["number"].to_pylist())
    assert {150, 151, 101, 100} & numbers == {150, 101}


def test_row_keeps_its_split_and_equal_rows_give_equal_files(
    prepare: Prepare, good: Artifact, whole_window: Artifact, flights: Flights
) -> None:
    again = prepare("good", **NEWEST)
    assert again.fingerprint == good.fingerprint and again.uri != good.uri
    assert whole_window.properties["splits"] == ["train", "eval"]
    allowed = {"reject": {"a quarter": "number < 500"}, "max_rejected": 0.25}
    assert prepare("good", **allowed).rows["orders"].rejected["a quarter"] == 500
    for split in ("train", "eval"):
        some, more = (set(flights.rows(artifact, split)["order_id"].to_pylist()) for artifact in (good, whole_window))
        assert some < more


def test_keyless_rows_are_split_by_features_deterministically(prepare: Prepare, flights: Flights) -> None:
    result = prepare("plain", key=None, time=None)
    assert (result.properties["key"], result.properties["time"]) == (None, None)
    assert result.rows["orders"] == RowCounts(ORDERS, ORDERS)
    assert prepare("plain_in_another_order", key=None, time=None).fingerprint == result.fingerprint
    train, evaluation = (flights.rows(result, split) for split in ("train", "eval"))
    assert train.column_names == ["returned", "customer", "number"]
    assert 0.16 < evaluation.num_rows / ORDERS < 0.24
    # Every row stands twice, with one label and the other: its features are on one side.
    sides = [set(table["number"].to_pylist()) for table in (train, evaluation)]
    assert not sides[0] & sides[1] and len(sides[0] | sides[1]) == ORDERS // 2


def test_key_and_time_are_independent(prepare: Prepare, whole_window: Artifact, flights: Flights) -> None:
    keyed, timed = prepare("keyed", time=None), prepare("timed", key=None, **NEWEST)
    assert keyed.rows["orders"].rejected == {"duplicate key": 100}
    train = flights.rows(keyed, "train")
    assert train.column_names[:2] == ["order_id", "returned"]
    by_key = set(train["order_id"].to_pylist())
    assert by_key.isdisjoint(flights.rows(whole_window, "eval")["order_id"].to_pylist())
    assert timed.properties["splits"] == ["train", "eval", "newest"]
    assert timed.rows["newest"].rows_out == 100
    times = flights.rows(timed, "newest")["placed_at"].to_pylist()
    assert min(times) == int((START + timedelta(hours=ORDERS - 100)).timestamp())
    # Without a window, the newest rows are counted from the last one that is not rejected.
    snapshot = write_snapshot(flights, has_window=False)
    for function in ("timed", "one_from_the_future"):
        result = prepare(function, tables=snapshot, key=None, **NEWEST)
        times = flights.rows(result, "newest")["placed_at"].to_pylist()
        latest = int((START + timedelta(hours=ORDERS - 1)).timestamp())
        assert (min(times), max(times), len(times)) == (latest - 99 * 3600, latest, 100)


def test_classes_are_numbered_by_name_and_unknown_ones_rejected(
    prepare: Prepare, flights: Flights, caplog: pytest.LogCaptureFixture
) -> None:
    result = prepare("priced", label="price", classes=["low", "high", "fair"], weight="trust")
    assert result.rows["orders"].rejected == {
        "price is none of the classes": 60,
        "price is missing": 20,
        "trust is missing": 20,
        "trust is not a number above 0": 40,
    }
    report = {"problem": "multiclass", "classes": ["low", "high", "fair"], "weight": "trust", "label": "price"}
    assert {name: result.properties[name] for name in report} == report
    assert "price is none of the classes ('low', 'high', 'fair'): 'dear' in 60 rows" in caplog.text
    train = flights.rows(result, "train")
    assert train.column_names == ["order_id", "placed_at", "price", "trust", "number"]
    assert (train.schema.field("price").type, train.schema.field("trust").type) == (pa.int64(), pa.float64())
    # The number's remainder by three says the class, and its remainder by seven the weight.
    assert train["price"].to_pylist() == [n % 3 for n in train["number"].to_pylist()]
    assert train["trust"].to_pylist() == [n % 7 + 0.5 for n in train["number"].to_pylist()]


@pytest.mark.parametrize(
    ("function", "params", "expected"),
    [
        ("no_features", {}, "prepare returned no features, only order_id, placed_at, returned"),
        (
            "keyed",
            {"time": None, "newest_s": 3600},
            "newest needs a time; name the column of the time, or leave",
        ),
        ("array_column", {}, "prepare's column 'words' is of type list<"),
        ("timestamp_feature", {}, "prepare's column 'also_at' is of type timestamp[us, tz="),
        ("inner_join", {}, "table 'orders' has 2000 rows, 600 came out; a filter or an inner join drops rows"),
        ("one_class", {}, "label 'returned' is 1 in all"),
        ("good", {"label": "text", "problem": "regression"}, "column 'text' of the label of a regression is of"),
        (
            "classes",
            {},
            "label 'returned' has 13 whole numbers (0 in 154 rows, 1 in 154 rows, 2 in 154 rows, 3 in 154 rows, 4 in "
            "154 rows, 5 in 154 rows, 6 in 154 rows, 8 in 154 rows, 9 in 154 rows, 10 in 154 rows and 3 more), "
            "which may be classes or amounts; set problem='multiclass', 'regression' or, for two values, 'binary'",
        ),
        (
            "untidy",
            {"reject": {"a quarter": "number < 500"}},
            "table 'orders': 475 of 2000 rows (23.8%) are rejected for 'a quarter', more than max_rejected=0.1 allows; "
            "rejected in all: a quarter 475, returned is missing 150, ",
        ),
        ("good", {"key": "id"}, "key is 'id', but prepare returned no such column; it has "),
        ("good", {"time": "at"}, "time is 'at', but prepare returned no such column"),
        ("milliseconds", {}, "'placed_at' has the time 1704067200000, which is not in the years 1 to 9999"),
        (
            "good",
            {"reject": {"odd": "(amount > 7"}},
            "reject['odd']: '(amount > 7': ParserException: Parser Error: syntax",
        ),
        ("misspelt", {}, "\nLINE 2: FORM orders\n             ^^^^^^"),
        ("good", {"time": "text"}, "prepare's column 'text' is of type string; expected"),
        (
            "good",
            {"table": "invoices"},
            "table is 'invoices', which the snapshot does not have; it has orders, customers, visits",
        ),
        ("good", {"prepare": "nowhere:prepare"}, "'nowhere:prepare': there is no module 'nowhere'"),
        (
            "long_numbers",
            {},
            "prepare's column 'account' has missing values, so that it becomes float64, which cannot hold "
            "123456789012345",
        ),
        (
            "all_rejected",
            {"max_rejected": 1},
            "no rows are left in split 'train': 2000 rows in, 2000 rejected ({'closed': 2000})",
        ),
    ],
)
def test_bad_user_code_is_named(prepare: Prepare, function: str, params: dict[str, Any], expected: str) -> None:
    with pytest.raises(HopsError, match=re.escape(expected)) as failed:
        prepare(function, **params)
    assert not failed.value.retryable


@pytest.mark.usefixtures("spark")
def test_bad_code_for_spark_is_named(prepare: Prepare) -> None:
    unparsed, uncast = "(amount > 7", "CAST(text AS INT) > 7"
    for function, condition, expected in (
        ("missing_column", None, "prepare_cases:missing_column raised AnalysisException: [UNRESOLVED_COLUMN"),
        ("raising_in_executor", None, "a Python function in prepare raised: KeyError: 'rate of the day'"),
        ("twice", None, "prepare returned two columns 'customer'"),
        ("orders", unparsed, f"reject['odd']: '{unparsed}': [PARSE_SYNTAX_ERROR] Syntax error at or near end of input"),
        ("orders", uncast, "an expression of prepare or reject cannot be computed: The value '"),
    ):
        with pytest.raises(HopsError, match=re.escape(expected)) as failed:
            prepare(function, engine="spark", reject={} if condition is None else {"odd": condition})
        assert not failed.value.retryable


def test_warnings_of_ingest_reach_the_statistics(prepare: Prepare, flights: Flights, tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("number,city\n" + "".join(f"{n},Bonn{' ' * (n == 3)}\n" for n in range(400)))
    sources = {"orders": {"uri": str(tmp_path / "orders.csv")}}
    snapshot = flights.run(ingest, sources=sources)
    examples = prepare("plain", snapshot, key=None, time=None, table="orders")
    statistics = flights.run(feature_statistics, examples=examples)
    (warning,) = statistics.properties["warnings"]
    assert f"{tmp_path}/orders.csv, row 4, column 'city': 'Bonn ' has blanks around it, as 1 of 400 texts" in warning
    assert snapshot.properties["warnings"] == examples.properties["warnings"] == statistics.properties["warnings"]
