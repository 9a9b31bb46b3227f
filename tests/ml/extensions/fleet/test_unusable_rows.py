"""Rows that cannot be used, in small fleets of all kinds: each segment is trained without them, or fails by name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shops

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.core.source import SegmentSource
from airflow_hops.extensions.fleet.ml.fleet_files import OpenFleet

PROBLEMS = ("regression", "binary", "multiclass")
CLASSES = {"regression": None, "binary": [0, 1], "multiclass": [0, 1, 2]}
ROWS = 60
FAULTS = [("label", value) for value in (None, math.nan, math.inf, -math.inf, 99.0, 0.5, -1.0)]
FAULTS += [("weight", value) for value in (None, math.nan, math.inf, -math.inf, -1.0, 0.0)]
FAULTS += [("price", math.inf), ("visits", -math.inf), ("visits", 1e300), ("price", None), ("day", None), ("day", "")]
FAULTY = {
    f"{column} {value} {many}": (column, value, rows)
    for column, value in FAULTS
    for many, rows in (("once", 1), ("half", ROWS // 2), ("all", ROWS))
}
SCHEMA = """
feature { name: "price" type: FLOAT } feature { name: "visits" type: FLOAT } feature { name: "day" type: BYTES }
feature { name: "region" type: BYTES } feature { name: "shop" type: BYTES presence { min_fraction: 1 } }
feature { name: "label" type: FLOAT presence { min_fraction: 1 } } feature { name: "weight" type: FLOAT }
"""


def rows_of(shop: str, problem: str) -> pa.Table:
    """Rows of a shop, of which the first ones have its fault."""
    columns = shops.rows_of(shop, ROWS, problem=problem).to_pydict()
    columns = {**columns, "label": [*map(float, columns["label"])], "weight": [1.0 + row % 2 for row in range(ROWS)]}
    if shop in FAULTY:
        column, value, rows = FAULTY[shop]
        columns[column][:rows] = [value] * rows
    types = {"price": pa.float32(), "visits": pa.float64(), "label": pa.float64(), "weight": pa.float64()}
    types["day"] = pa.string()
    return pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})


def can_be_integers(table: pa.Table) -> bool:
    return all(label is None or label % 1 == 0 for label in table["label"].to_pylist())


def with_integers(table: pa.Table) -> pa.Table:
    return shops.replaced(table, "label", table["label"].cast(pa.int64()))


def counts(row: dict[str, Any], problem: str) -> bool:
    """Whether a model learns from a row: it has a label, of the classes if any, and a weight above 0."""
    label, weight, classes = row["label"], row["weight"], CLASSES[problem]
    has_label = label is not None and math.isfinite(label) and (classes is None or label in classes)
    return has_label and weight is not None and math.isfinite(weight) and weight > 0


def is_infinite(row: dict[str, Any]) -> bool:
    return any(row[name] is not None and abs(row[name]) > 1e39 for name in ("price", "visits"))


@pytest.fixture(params=["no schema", "a schema"])
def schema(store: ArtifactStore, request: pytest.FixtureRequest, problem: str) -> Artifact | None:
    if request.param == "no schema":
        return None
    text = SCHEMA if problem == "regression" else SCHEMA.replace('"label" type: FLOAT', '"label" type: INT')
    return shops.write_schema(store, text)


def write_raw(raw: Path, tables: dict[str, pa.Table], problem: str) -> dict[str, Any]:
    raw.mkdir()
    for number, table in enumerate(tables.values()):
        pq.write_table(table, raw / f"{number:03}.parquet")
    of_label = {"problem": "regression"} if problem == "regression" else {"classes": CLASSES[problem]}
    return SegmentSource(str(raw), label="label", weight="weight", max_rejected=1, **of_label).to_dict()


def check_account(fleet: OpenFleet, keys: set[str]) -> None:
    """Each segment is trained, was trained before, or vanished; and is answered by one model."""
    outcomes, entries = fleet.properties.more["fleet"], fleet.entries
    assert {*entries} == keys
    assert outcomes["segments"] == len(keys) == outcomes["trained"] + outcomes["reused"] + outcomes["vanished"]
    assert outcomes["states"] == Counter(entry["state"] for entry in entries.values())
    assert outcomes["failed"] == sum(entry["failed"] for entry in entries.values())


def broken(tables: dict[str, pa.Table], is_broken: Callable[[list[bool]], bool], problem: str) -> Iterator[str]:
    """The shops with infinite features in usable rows, or whose rows are broken as to which ones are usable."""
    for shop, table in tables.items():
        usable = [counts(row, problem) for row in table.to_pylist()]
        infinite = any(is_infinite(row) for row, is_usable in zip(table.to_pylist(), usable, strict=True) if is_usable)
        if infinite or is_broken(usable):
            yield shop


@pytest.mark.parametrize("problem", PROBLEMS)
def test_raw_rows_that_cannot_be_used(
    store: ArtifactStore,
    schema: Artifact | None,
    train: Callable[..., Artifact],
    opened: Callable[[Artifact], OpenFleet],
    tmp_path: Path,
    problem: str,
) -> None:
    tables = {shop: rows_of(shop, problem) for shop in [*FAULTY, *(f"shop {number}" for number in range(6))]}
    tables |= {f"tiny {number}": rows_of(f"tiny {number}", problem).slice(0, 1) for number in range(12)}
    artifact = train(None, source=write_raw(tmp_path / "raw", tables, problem), schema=schema, max_failed=1.0)
    fleet = opened(artifact)
    check_account(fleet, {*tables})
    failed = {shop for shop, entry in fleet.entries.items() if entry["failed"]}
    assert failed == {*broken(tables, lambda usable: not any(usable), problem)}
    total = 0
    for shop, table in tables.items():
        entry, own = fleet.entries[shop], [counts(row, problem) for row in table.to_pylist()]
        total += sum(own)
        if shop in FAULTY and (left_out := len(own) - sum(own)):
            column, *_ = FAULTY[shop]
            assert f"{column} is " in entry["reason"] and f" in {left_out} rows, which are rejected" in entry["reason"]
        if shop in failed:
            assert entry["reason"].startswith("failed: ") and FAULTY[shop][0] in entry["reason"]
    assert artifact.rows["source"].rows_out == total
    only_held = {shop for shop, entry in fleet.entries.items() if entry["reason"] == "no training rows"}
    assert only_held and all(shop.startswith("tiny") for shop in only_held)
    # As if those rows had not been: encoding and models are those of files without them.
    usable = {
        shop: table.filter(pa.array([counts(row, problem) for row in table.to_pylist()]))
        for shop, table in tables.items()
    }
    whole = train(None, source=write_raw(tmp_path / "usable", usable, problem), schema=schema, max_failed=1.0)
    other = opened(whole)
    assert other.fleet.description.encoding == fleet.fleet.description.encoding
    for shop in other.entries:
        assert (other.segment(shop)[1], other.entries[shop]["rows"]) == (
            fleet.segment(shop)[1],
            fleet.entries[shop]["rows"],
        )


@pytest.mark.parametrize("problem", PROBLEMS)
def test_examples_that_cannot_be_used(
    store: ArtifactStore,
    schema: Artifact | None,
    train: Callable[..., Artifact],
    opened: Callable[[Artifact], OpenFleet],
    problem: str,
) -> None:
    tables = {shop: rows_of(shop, problem) for shop in [*FAULTY, *(f"shop {number}" for number in range(6))]}
    held = {shop: rows_of(shop, problem) for shop in ("only held out", "shop 0")}
    if problem != "regression":  # classes are integers
        tables = {shop: with_integers(table) for shop, table in tables.items() if can_be_integers(table)}
        held = {shop: with_integers(table) for shop, table in held.items()}
    splits = {"train": pa.concat_tables(tables.values()), "eval": pa.concat_tables(held.values())}
    facts = {"problem": problem, "weight": "weight", "schema": schema}
    fleet = opened(train(splits, max_failed=1.0, **facts))
    check_account(fleet, {*tables, "only held out"})
    # What prepare() would have rejected; rows without a weight count for nothing.
    expected = {*broken(tables, lambda usable: not all(usable), problem)} - {"weight 0.0 once", "weight 0.0 half"}
    failed = {shop: entry["reason"] for shop, entry in fleet.entries.items() if entry["failed"]}
    assert {*failed} == expected
    for shop, reason in failed.items():
        assert reason.startswith("failed: BadInput: ") and f"'{FAULTY[shop][0]}'" in reason
    assert fleet.entries["only held out"]["reason"] == "no training rows"
    usable = {
        shop: table.filter(pa.array([counts(row, problem) and not is_infinite(row) for row in table.to_pylist()]))
        for shop, table in tables.items()
    }
    splits = {"train": pa.concat_tables(usable.values()), "eval": held["shop 0"]}
    other = opened(train(splits, **facts))
    for shop in tables.keys() - failed:
        assert other.segment(shop)[1] == fleet.segment(shop)[1]


def test_segment_whose_rows_are_all_rejected_keeps_the_model_before(
    train: Callable[..., Artifact], opened: Callable[[Artifact], OpenFleet], tmp_path: Path
) -> None:
    tables = {f"shop {number}": rows_of(f"shop {number}", "regression") for number in range(8)}
    first = train(None, source=write_raw(tmp_path / "raw", tables, "regression"))
    model = opened(first).segment("shop 3")[1]
    zeros = pa.array([0.0] * ROWS)
    tables["shop 3"] = shops.replaced(tables["shop 3"], "weight", zeros)
    source = write_raw(tmp_path / "later", tables, "regression")
    with pytest.raises(BadInput, match=r"1 of 8 segments failed, .* 'shop 3' failed: no row .*weight is not a number"):
        train(None, source=source, before=first, run_id="later")
    fleet = opened(train(None, source=source, before=first, run_id="later", max_failed=0.2))
    assert (fleet.entries["shop 3"]["failed"], fleet.segment("shop 3")[1]) == (True, model)
    assert fleet.entries["shop 3"]["reason"].endswith("(of 003.parquet); the model before stays")
    tables = {shop: shops.replaced(table, "weight", zeros) for shop, table in tables.items()}
    with pytest.raises(
        BadInput, match=r"no segment has a row to train on; rejected are .'weight is not a number above"
    ):
        train(None, source=write_raw(tmp_path / "none", tables, "regression"))


FILES: dict[str, tuple[bytes, str]] = {
    "a broken file": (b"PAR1 and no more", "more.parquet"),
    "an empty Parquet file": (b"", "more.parquet: the file is empty"),
    "an empty key": (b'shop,price,label\n"",1.5,1\n', "'shop' is (null in|'' in some)"),
    "a blank key": (b"shop,price,label\n ,1.5,1\n", "'shop' is (null in|' ' in some)"),
}


@pytest.mark.parametrize("name", FILES)
def test_file_that_cannot_be_used_is_named(train: Callable[..., Artifact], tmp_path: Path, name: str) -> None:
    content, message = FILES[name]
    (raw := tmp_path / "raw").mkdir()
    rows = "".join(f"a,{row % 7}.5,{row}\n" for row in range(60))
    (raw / "a.csv").write_text(f"shop,price,label\n{rows}")
    (raw / ("more.parquet" if "parquet" in message else "more.csv")).write_bytes(content)
    (raw / "empty.csv").write_bytes(b"")  # has no rows, and says nothing of columns
    source = SegmentSource(str(raw), label="label", problem="regression").to_dict()
    with pytest.raises(BadInput, match=message):
        train(None, source=source)
