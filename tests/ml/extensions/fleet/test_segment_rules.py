"""Segments whose rows break the schema, or have no label or weight: they fail alone, and others do not notice."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import shops

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_files import read_json
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.core.summary import SegmentTable
from airflow_hops.extensions.fleet.ml.fleet_files import OpenFleet
from airflow_hops.ml.schema_files import parse_schema, to_text

SIZES = [(f"shop {number}", 200) for number in range(6)]
SCHEMA = """
feature { name: "price" type: FLOAT float_domain { min: -50 max: 50 } presence { min_fraction: 1 } }
feature { name: "visits" type: INT presence { min_fraction: 0.9 } }
feature { name: "day" type: BYTES domain: "days" presence { min_count: 1 } }
feature { name: "label" type: FLOAT presence { min_fraction: 1 } }
feature { name: "shop" type: BYTES presence { min_fraction: 1 } }
feature { name: "never" type: BYTES presence { min_fraction: 1 } }
string_domain { name: "days" value: ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"] }
"""
BREAKS = {
    "beyond the bounds": (
        "price",
        3,
        1e9,
        "price: FLOAT_TYPE_BIG_FLOAT: 1000000000.0, expected at most 50 in 3 of 200",
    ),
    "a required value is missing": (
        "price",
        1,
        None,
        "price: FEATURE_TYPE_LOW_FRACTION_PRESENT: missing, and required",
    ),
    "outside the domain": ("day", 2, "Caturday", "day: ENUM_TYPE_UNEXPECTED_STRING_VALUES: 'Caturday'"),
    "no label": ("label", 1, None, "column 'label' is nan, expected a number, in 1 of 200 rows"),
    "an infinite feature": (
        "visits",
        2,
        math.inf,
        "column 'visits' is infinite, expected a finite number, or null, in 2",
    ),
    "a negative weight": ("weight", 2, -1.0, "column 'weight' is -1.0, expected 0 or more, in 2 of 200 rows"),
    "no weight": ("weight", 200, 0.0, "column 'weight', the weight, is 0 in all 200 rows"),
}


@pytest.fixture
def schema(store: ArtifactStore) -> Artifact:
    return shops.write_schema(store, to_text(parse_schema(SCHEMA, "SCHEMA")))


def with_values(table: pa.Table, shop: str, name: str, rows: int, value: Any) -> pa.Table:
    """The table with another value in the first rows of a shop."""
    values, left = table[name].to_pylist(), rows
    for row, key in enumerate(table["shop"].to_pylist()):
        if key == shop and left:
            values[row], left = value, left - 1
    return shops.replaced(table, name, pa.array(values, table.schema.field(name).type))


@pytest.mark.parametrize("name", BREAKS)
def test_segment_that_breaks_a_rule_fails_alone(
    store: ArtifactStore,
    schema: Artifact,
    train: Callable[..., Artifact],
    opened: Callable[[Artifact], OpenFleet],
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    column, rows, value, message = BREAKS[name]
    splits = {s: t.append_column("weight", pa.array(np.ones(len(t)))) for s, t in shops.tables(SIZES).items()}
    if value == math.inf:  # which integers are not
        splits = {s: shops.replaced(t, "visits", pc.cast(t["visits"], pa.float64())) for s, t in splits.items()}
        schema = None
    broken = {**splits, "train": with_values(splits["train"], "shop 3", column, rows, value)}
    examples = shops.write(store, broken, weight="weight")
    with pytest.raises(BadInput) as raised:
        train(examples, schema=schema)
    assert "1 of 6 segments failed, more than max_failed=0 allows: 'shop 3' failed: " in str(raised.value)
    assert message in str(raised.value)
    with caplog.at_level(logging.WARNING):
        artifact = train(examples, schema=schema, max_failed=0.2)
    assert [line for line in caplog.messages if line.startswith("Segment 'shop 3' failed: ") and message in line]
    fleet, others = opened(artifact), [shop for shop, _ in SIZES if shop != "shop 3"]
    entry = fleet.entries["shop 3"]
    assert (entry["state"], entry["failed"], artifact.metrics["failed"]) == ("pooled", True, 1)
    page = SegmentTable.from_dict(read_json(store.local(artifact) / "summary.json"))
    assert message in page.reason[list(page.segment).index("shop 3")]
    assert {fleet.entries[shop]["state"] for shop in others} <= {"own", "continued"}
    json.loads(fleet.statistics["shop 3"], parse_constant=pytest.fail)  # such as NaN, which JSON does not have
    # As if the broken rows had not been: the others' encoding, pooled model and models do not move.
    if rows < 200:
        bad = np.array([key == "shop 3" for key in broken["train"]["shop"].to_pylist()])
        without = broken["train"].filter(pa.array(~bad | (np.cumsum(bad) > rows)))
        whole = opened(train({**splits, "train": without}, weight="weight"))
        assert whole.fleet.description.encoding == fleet.fleet.description.encoding
        assert shops.models(whole, others) == shops.models(fleet, others)


def test_sound_rows_pass_and_a_schema_that_changes_judges_again(
    store: ArtifactStore, schema: Artifact, train: Callable[..., Artifact]
) -> None:
    examples = shops.write(store, shops.tables(SIZES))
    first = train(examples, schema=schema)
    assert first.metrics["failed"] == 0
    assert train(examples, schema=schema, before=first).metrics["trained"] == 0
    narrow = shops.write_schema(store, SCHEMA.replace("min: -50 max: 50", "min: 9 max: 11"), "narrow")
    with pytest.raises(BadInput, match=r"all 1,200 rows|6 of 6 segments failed"):
        train(examples, schema=narrow, before=first)


def test_shares_of_all_rows_are_not_those_of_a_segment(schema: Artifact, train: Callable[..., Artifact]) -> None:
    splits = shops.tables(SIZES)
    for column in ("visits", "day"):
        splits["train"] = with_values(splits["train"], "shop 3", column, 200, None)
    assert train(splits, schema=schema).metrics["failed"] == 0
