"""Rows that break the schema: the same as TFDV finds one by one, and none of them among the good."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_data_validation as tfdv
from google.protobuf import text_format
from tensorflow_data_validation.api import validation_api
from tensorflow_data_validation.statistics import stats_impl
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.statistics.arrow_lists import as_lists
from airflow_hops.ml.validation.quarantine import split_anomalous
from airflow_hops.ml.validation.row_rules import RowRules

_NAN, _INF = float("nan"), float("inf")

VALUES: dict[str, list[Any]] = {
    "INT": [0, 1, 2, -1, 5, 7, 2**62, None, [], [0, 5], [1, 2], [1, 2, 3], [1, 2, 3, 4]],
    "FLOAT": [0, 1, 2, -1, 0.5, 0.7, 0.7000001, -0.1, -0.1000001, _NAN, _INF, -_INF, None, [], [0, _NAN], [0.5, 3]],
    "BYTES": [
        *b"a b c t f x 0.1 0.7 0.09 0.71 1 9 1.5 -1 +1 1_0 1e0 .5 5. nan inf 99999999999999999999".split(), b"", b" 1",
        b"1 ", "\u00e9".encode(), b"\xff", b"b" * 1024, b"b" * 1025, b"\xff" * 1025, None, [], [b"a", b"z"],
        [b"a", b"z", b"z"], [b"t", b"x"],
    ],
    "INT TABLE": [[[1, 2]], [[1], [2]], [], [[]], [[1, 2], []], [[1]], None],
    "INT FOR FLOAT": [1, None],
}  # fmt: skip
"""Rows by the kind of the data: a value each, a list of them, or None."""

RULES = {
    "INT": [
        "int_domain { min: 0 max: 1 }", "int_domain { min: 0 }", "int_domain { is_categorical: true min: 0 max: 3 }",
        "deprecated: true int_domain { min: 0 }", "lifecycle_stage: PLANNED int_domain { min: 0 }",
        "lifecycle_stage: BETA int_domain { min: 0 }", 'not_in_environment: "SERVING" int_domain { min: 0 }',
        "bool_domain { }", "presence { min_fraction: 0.5 min_count: 1 }", "value_count { min: 1 max: 2 }",
        "value_count { min: 2 }", "value_counts { value_count { min: 1 max: 1 } }", "shape { dim { size: 2 } }",
        "value_counts { value_count { min: 1 max: 1 } value_count { min: 1 max: 1 } }",
        "shape { dim { size: 2 } dim { size: 2 } }",
    ],
    "INT TABLE": ["shape { dim { size: 2 } }"],
    "INT FOR FLOAT": [""],
    "FLOAT": [
        "bool_domain { }", "float_domain { min: 0 max: 1 }", "float_domain { min: -0.1 max: 0.7 }",
        "float_domain { disallow_nan: true }", "float_domain { disallow_inf: true min: 0 }",
    ],
    "BYTES": [
        "", 'domain: "shared"', 'bool_domain { true_value: "t" false_value: "f" }', 'bool_domain { true_value: "t" }',
        'string_domain { value: "a" value: "b" }', 'string_domain { value: "a" value: "__LARGE_BYTES__" }',
        'string_domain { value: "a" } distribution_constraints { min_domain_mass: 0.5 }',
        "int_domain { min: 0 max: 5 }", "float_domain { min: 0 max: 5 disallow_nan: true }",
        "float_domain { min: 0.1 max: 0.7 }",
    ],
}  # fmt: skip
"""Rules of the feature in the schema, beside its type, by the kind of the data."""


def _schema(text: str) -> Any:
    shared = 'string_domain { name: "shared" value: "a" value: "b" }'
    environments = 'default_environment: "TRAINING" default_environment: "SERVING"'
    return text_format.Parse(f"{text} {shared} {environments}", schema_pb2.Schema())


@pytest.mark.parametrize("kind", RULES)
def test_row_anomalies_match_tfdv(kind: str) -> None:
    for rule in RULES[kind]:
        check_rule(kind, rule)


def check_rule(kind: str, rule: str) -> None:
    """Asserts that rows break a rule as TFDV finds of each by itself."""
    values, (type_, *_) = VALUES[kind], kind.split()
    schema = _schema(f'feature {{ name: "x" type: {"FLOAT" if "FLOAT" in kind else type_} {rule} }}')
    lists = [value if value is None or isinstance(value, list) else [value] for value in values]
    values_type = pa.large_list({"INT": pa.int64(), "FLOAT": pa.float64(), "BYTES": pa.binary()}[type_])
    column = pa.array(lists, pa.large_list(values_type) if "TABLE" in kind else values_type)
    batch = pa.RecordBatch.from_arrays([column], ["x"])
    ours: list[list[str]] = [[] for _ in values]
    for broken in RowRules(schema, "SERVING", ["x"]).check(batch):
        for row in broken.rows:
            ours[row].append(broken.kind)
    options = tfdv.StatsOptions(schema=schema)
    for row, value in enumerate(values):
        if "shape" in rule and value is None:
            continue  # of one row alone, TFDV passes over a missing value
        # A slice keeps its offsets, which TFDV trips over in lists of lists.
        (one,) = pa.Table.from_batches([batch]).take([row]).to_batches()
        result = validation_api.validate_instance(one, options, "SERVING")
        kinds = [reason.type for info in result.anomaly_info.values() for reason in info.reason]
        theirs = sorted(anomalies_pb2.AnomalyInfo.Type.Name(kind) for kind in kinds)
        # A column of another environment is one that the schema does not know.
        assert sorted(ours[row]) == [kind for kind in theirs if kind != "SCHEMA_NEW_COLUMN"], (rule, value)


_BROKEN_SCHEMA = """
feature { name: "key" type: BYTES presence { min_fraction: 1 min_count: 1 } }
feature { name: "count" type: INT presence { min_fraction: 1 min_count: 1 } int_domain { min: 0 max: 9 } }
feature { name: "share" type: FLOAT float_domain { min: 0 max: 1 disallow_inf: true } }
feature { name: "city" type: BYTES domain: "shared" presence { min_fraction: 0.5 min_count: 1 } }
feature { name: "tags" type: BYTES value_count { min: 1 max: 3 } string_domain { value: "x" value: "y" } }
"""


def broken_table(rows: int) -> pa.Table:
    """One row in ten or so breaks something."""
    random = np.random.default_rng(3)

    def some(values: list[Any], other: Any, share: float = 0.02) -> list[Any]:
        return [other if chosen else value for value, chosen in zip(values, random.random(rows) < share, strict=True)]

    counts = some(some(random.integers(0, 10, rows).tolist(), None), -1)
    shares = some(some(some(random.random(rows).tolist(), 1.5), _INF), None)
    cities = some(some(random.choice(["a", "b"], rows).tolist(), "somewhere else"), None, 0.3)
    tags = some(some([["x"] * int(n) for n in random.integers(1, 4, rows)], ["y", "z"]), ["x"] * 4)
    return pa.table(
        {
            "key": pa.array([f"row-{number:05}" for number in range(rows)]),
            "count": pa.array(counts, pa.int64()),
            "share": pa.array(shares, pa.float64()),
            "city": pa.array(cities).dictionary_encode().cast(pa.string()),
            "tags": pa.array(tags),
        }
    )


class Split:
    """A table whose rows break all sorts of rules, and what has become of it."""

    def __init__(self, folder: Path) -> None:
        self.table, self.schema = broken_table(1200), _schema(_BROKEN_SCHEMA)
        (folder / "table").mkdir()
        for part in range(4):
            rows = self.table.slice(part * 300, 300)
            pq.write_table(rows, folder / "table" / f"{part}.parquet", row_group_size=90)
        self.found = split_anomalous(folder / "table", self.schema, folder / "good", folder / "quarantine")
        self.good, self.quarantined = (pq.read_table(folder / name) for name in ("good", "quarantine"))


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return Split(tmp_path_factory.mktemp("split"))


def test_rows_are_conserved_and_keep_their_columns(split: Split) -> None:
    counts = split.found.counts
    assert counts.rows_in == 1200 == counts.rows_out + sum(counts.rejected.values())
    assert 840 < counts.rows_out < 1080
    keys = split.good["key"].to_pylist() + split.quarantined["key"].to_pylist()
    assert sorted(keys) == sorted(split.table["key"].to_pylist())
    assert split.good.schema.equals(split.table.schema)
    assert split.quarantined.drop(["anomaly_reasons"]).schema.equals(split.table.schema)


def test_only_good_rows_validate_without_anomaly(split: Split) -> None:
    expected_kinds = _kinds(split.table, split.schema)
    assert set(expected_kinds) == {"count", "share", "city", "tags"}
    assert _kinds(split.good, split.schema) == {}
    # What TFDV says of all rows together is what is said of the quarantined ones, feature by feature.
    assert {name: sorted(kinds) for name, kinds in split.found.by_feature.items()} == expected_kinds


def test_every_quarantined_row_has_a_reason(split: Split) -> None:
    reasons = split.quarantined["anomaly_reasons"].to_pylist()
    assert all(reasons)
    report = {reason for row in reasons for reason in row}
    assert "city: ENUM_TYPE_UNEXPECTED_STRING_VALUES: 'somewhere else', not in the domain" in report
    assert "count: INT_TYPE_SMALL_INT: -1, expected at least 0" in report
    assert "count: FEATURE_TYPE_LOW_FRACTION_PRESENT: missing, and required" in report
    assert "share: FLOAT_TYPE_BIG_FLOAT: 1.5, expected at most 1" in report
    assert "tags: FEATURE_TYPE_HIGH_NUMBER_VALUES: 4 values, expected at most 3" in report
    assert any(len(row) > 1 for row in reasons)


@pytest.mark.slow
def test_tfdv_finds_the_same_rows_one_by_one_except_for_missing_values(split: Split, tmp_path: Path) -> None:
    few = split.table.slice(0, 150)
    split_anomalous(few, split.schema, tmp_path / "good", tmp_path / "quarantine")
    quarantined = pq.read_table(tmp_path / "quarantine")["key"].to_pylist()
    options, lists = tfdv.StatsOptions(schema=split.schema), as_lists(few.combine_chunks().to_batches()[0])
    theirs = set()
    for row, key in enumerate(few["key"].to_pylist()):
        (one,) = pa.Table.from_batches([lists]).take([row]).to_batches()
        if validation_api.validate_instance(one, options).anomaly_info:
            theirs.add(key)
    missing = few.filter(few["count"].is_null())["key"].to_pylist()
    assert len(theirs) > 10 and missing
    assert sorted(quarantined) == sorted({*theirs, *missing})


def _kinds(table: pa.Table, schema: Any) -> dict[str, list[str]]:
    """TFDV's anomalies of a table, by feature."""
    (batch,) = table.combine_chunks().to_batches()
    statistics = stats_impl.generate_statistics_in_memory(as_lists(batch), tfdv.StatsOptions(schema=schema))
    result = tfdv.validate_statistics(statistics, schema, environment="TRAINING")
    return {
        name: sorted(anomalies_pb2.AnomalyInfo.Type.Name(reason.type) for reason in info.reason)
        for name, info in result.anomaly_info.items()
    }


X = pa.table({"x": [1]})


@pytest.mark.parametrize(
    ("source", "good", "quarantine", "words"),
    [
        ("corrupt", "new", "q", "b.parquet"),
        ("g", "g", "q", "part-00000.parquet: to be read, and its folder is to be written to"),
        (X, "g", "g", "the folder for good rows is also that for quarantined rows"),
        (X, "new", "corrupt", "'a.parquet' is in it; expected an empty folder"),
        ("nowhere", "new", "q", "nowhere"),
        (X.append_column("anomaly_reasons", [["?"]]), "new", "q", "there is already a column 'anomaly_reasons'"),
    ],
)
def test_unsplittable_sources_are_named_and_write_nothing(
    tmp_path: Path, source: Any, good: str, quarantine: str, words: str
) -> None:
    for folder in ("corrupt", "g"):
        (tmp_path / folder).mkdir()
    pq.write_table(X, tmp_path / "corrupt" / "a.parquet")
    content = (tmp_path / "corrupt" / "a.parquet").read_bytes()
    (tmp_path / "corrupt" / "b.parquet").write_bytes(content[:100])
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "g" / "part-00000.parquet")
    source = tmp_path / source if isinstance(source, str) else source
    schema = _schema('feature { name: "x" type: INT }')
    with pytest.raises(BadInput, match=re.escape(words)):
        split_anomalous(source, schema, tmp_path / good, tmp_path / quarantine)
    with pytest.raises(BadInput, match="environment 'PRODUCTION' is not in the schema; there are TRAINING, SERVING"):
        split_anomalous(X, schema, tmp_path / "new", tmp_path / "q", environment="PRODUCTION")
    assert pq.read_table(tmp_path / "g").num_rows == 2
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "q").exists()


_TOO_BIG = ["x: INT_TYPE_BIG_INT: 2, expected at most 1"]
_GONE = ["x: SCHEMA_MISSING_COLUMN: there is no such column"]


@pytest.mark.parametrize(
    ("source", "good", "reasons"),
    [
        (pa.table({"x": pa.array([], pa.int64())}), 0, []),
        (pa.table({"y": [1, 2]}), 0, [_GONE, _GONE]),
        (pa.table({"x": pa.array(["1", None])}), 1, [["x: UNEXPECTED_DATA_TYPE: BYTES, expected INT"]]),
        (pa.table({"x": pa.array([1, 2, None]).dictionary_encode()}), 2, [_TOO_BIG]),
        (pa.table({"x": pa.array([1, 2, None], pa.int8())}), 2, [_TOO_BIG]),
        (
            pa.table({"x": pa.array([1, 2**64 - 1, None], pa.uint64())}),
            2,
            [["x: INT_TYPE_BIG_INT: 18446744073709551615, expected at most 1"]],
        ),
        (
            pa.table({"x": pa.array([[1, 1], [1, 5]], pa.list_(pa.int64(), 2))}),
            1,
            [["x: INT_TYPE_BIG_INT: 5, expected at most 1"]],
        ),
        (pa.table({"x": pa.array([[5], [1], None, [1, 2]])}).slice(1), 2, [_TOO_BIG]),
    ],
    ids=["no rows", "no column", "other type", "dictionary", "narrow", "unsigned", "of one size", "sliced"],
)
def test_unusual_tables_are_split(tmp_path: Path, source: pa.Table, good: int, reasons: list[list[str]]) -> None:
    assert _split(source, tmp_path) == (good, source.column_names, reasons)


def _split(source: Any, folder: Path) -> tuple[int, list[str], list[list[str]]]:
    """How many rows are good, their columns, and the reasons of the others."""
    schema = _schema('feature { name: "x" type: INT presence { min_fraction: 0.5 } int_domain { max: 1 } }')
    split = split_anomalous(source, schema, folder / "g", folder / "q")
    good = pq.read_table(folder / "g")
    reasons = pq.read_table(folder / "q")["anomaly_reasons"].to_pylist() if (folder / "q").exists() else []
    assert good.num_rows == split.good
    assert len(reasons) == split.counts.check("split").rows_rejected
    return split.good, good.column_names, reasons


def test_late_column_is_in_the_good_rows(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"x": 1} if n < 3000 else {"x": 2, "late": n}) + "\n" for n in range(3010)))
    assert _split(lines, tmp_path) == (3000, ["x", "late"], [_TOO_BIG] * 10)
