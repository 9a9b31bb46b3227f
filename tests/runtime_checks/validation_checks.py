"""Checks of validation by rows against TFDV itself: steps in the runtime environment that return plain values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.statistics.arrow_lists import as_lists
from airflow_hops.runtime.validation import split_anomalous
from airflow_hops.runtime.validation.row_rules import RowRules

_NAN, _INF = float("nan"), float("inf")
_COUNTED = [0, None, [], [1, 2], [1, 2, 3]]
_ENVIRONMENTS = 'default_environment: "TRAINING" default_environment: "SERVING"'

CASES: dict[str, tuple[str, str, list[Any]]] = {
    "int_domain": ("INT", "int_domain { min: 0 max: 1 }", [0, 1, 2, -1, None, [], [0, 5]]),
    "int_domain_without_a_maximum": ("INT", "int_domain { min: 0 }", [0, -1, 2**62]),
    "categorical_integers": ("INT", "int_domain { is_categorical: true min: 0 max: 3 }", [1, 7]),
    "float_domain": ("FLOAT", "float_domain { min: 0 max: 1 }", [0, 2, -1, _NAN, _INF, None, [0, _NAN], [0.5, 3]]),
    "bounds_are_of_32_bits": ("FLOAT", "float_domain { min: 0.1 max: 0.7 }", [0.1, 0.7, 0.0999999, 0.7000001]),
    "bounds_of_numbers_in_strings": ("BYTES", "float_domain { min: 0.1 max: 0.7 }", [b"0.1", b"0.7", b"0.09", b"0.71"]),
    "no_nan": ("FLOAT", "float_domain { disallow_nan: true }", [0, _NAN, _INF, [1, _NAN]]),
    "no_infinity": ("FLOAT", "float_domain { disallow_inf: true min: 0 }", [0, _NAN, _INF, -_INF]),
    "string_domain": (
        "BYTES", 'string_domain { value: "a" value: "b" }', [b"a", b"c", None, [b"a", b"z"], b"\xff", b"", []]
    ),
    "large_strings": (
        "BYTES", 'string_domain { value: "a" value: "__LARGE_BYTES__" }',
        [b"a", b"b" * 1024, b"b" * 1025, b"\xff" * 1025, None],
    ),
    "domain_of_the_schema": ("BYTES", 'domain: "shared"', [b"a", b"c", "\u00e9".encode()]),
    "share_outside_of_the_domain": (
        "BYTES", 'string_domain { value: "a" } distribution_constraints { min_domain_mass: 0.5 }',
        [b"a", b"c", [b"a", b"z"], [b"a", b"z", b"z"], None, []],
    ),
    "any_string": ("BYTES", "", [b"a", b"\xff", None]),
    "bool_domain_of_strings": (
        "BYTES", 'bool_domain { true_value: "t" false_value: "f" }', [b"t", b"f", b"x", b"", [b"t", b"x"], None]
    ),
    "bool_domain_of_one_string": ("BYTES", 'bool_domain { true_value: "t" }', [b"t", b"f", b""]),
    "bool_domain_of_floats": ("FLOAT", "bool_domain { }", [0, 1, 0.5, 2, _NAN, None]),
    "bool_domain_of_integers": ("INT", "bool_domain { }", [0, 1, 2, -1]),
    "integers_in_strings": (
        "BYTES", "int_domain { min: 0 max: 5 }",
        [b"1", b"9", b"x", b"1.5", b" 1", b"1 ", b"", b"-1", b"+1", b"1_0", b"99999999999999999999", b"\xff", None],
    ),
    "floats_in_strings": (
        "BYTES", "float_domain { min: 0 max: 5 disallow_nan: true }",
        [b"1", b"9", b"x", b"1.5", b"nan", b"inf", b"", b"-1", b"1e0", b" 1", b".5", b"5.", b"1_0", None],
    ),
    "value_count": ("INT", "value_count { min: 1 max: 2 }", _COUNTED),
    "value_count_without_a_maximum": ("INT", "value_count { min: 2 }", _COUNTED),
    "value_counts_of_one_level": ("INT", "value_counts { value_count { min: 1 max: 1 } }", _COUNTED),
    "value_counts_of_two_levels": (
        "INT", "value_counts { value_count { min: 1 max: 1 } value_count { min: 1 max: 1 } }", _COUNTED
    ),
    "fixed_shape": ("INT", "shape { dim { size: 2 } }", [0, [], [1, 2], [1, 2, 3]]),
    "fixed_shape_of_two_dimensions": ("INT", "shape { dim { size: 2 } dim { size: 2 } }", [0, [1, 2, 3, 4]]),
    "fixed_shape_of_lists_of_lists": (
        "INT", "shape { dim { size: 2 } }", [[[1, 2]], [[1], [2]], [], [[]], [[1, 2], []], [[1]]]
    ),
    "missing_and_not_required": ("INT", "presence { min_fraction: 0.5 min_count: 1 }", [0, None, []]),
    "integer_for_a_float": ("FLOAT", "", [1, None]),
    "deprecated": ("INT", "deprecated: true int_domain { min: 0 max: 1 }", [0, 5]),
    "planned": ("INT", "lifecycle_stage: PLANNED int_domain { min: 0 max: 1 }", [0, 5]),
    "beta": ("INT", "lifecycle_stage: BETA int_domain { min: 0 max: 1 }", [0, 5]),
    "of_the_other_environment": ("INT", 'not_in_environment: "SERVING" int_domain { min: 0 max: 1 }', [0, 5, None]),
}  # fmt: skip
"""By name: the feature's type, the rest of it in the schema, and values of rows, each one, a list, or None."""

_TYPES = {"INT": pa.int64(), "FLOAT": pa.float64(), "BYTES": pa.binary()}
_DATA_TYPES = {"integer_for_a_float": pa.int64()}


def single_rows(context: StepContext) -> dict[str, Any]:
    """For each case the kinds of anomalies of each row, by this package and by TFDV's validation of one example."""
    import tensorflow_data_validation as tfdv
    from tensorflow_data_validation.api import validation_api
    from tensorflow_metadata.proto.v0 import anomalies_pb2

    facts = {}
    for name, (kind, rest, values) in CASES.items():
        schema = _schema(f'feature {{ name: "x" type: {kind} {rest} }}')
        lists = [None if value is None else value if isinstance(value, list) else [value] for value in values]
        values_type = pa.large_list(_DATA_TYPES.get(name, _TYPES[kind]))
        column = pa.array(lists, pa.large_list(values_type) if "lists_of_lists" in name else values_type)
        batch = pa.RecordBatch.from_arrays([column], ["x"])
        ours: list[list[str]] = [[] for _ in values]
        for broken in RowRules(schema, "SERVING", ["x"]).check(batch):
            for row in broken.rows:
                ours[row].append(broken.kind)
        options = tfdv.StatsOptions(schema=schema)
        theirs = []
        for row in range(len(values)):
            # A slice keeps its offsets, which TFDV trips over in lists of lists.
            (one,) = pa.Table.from_batches([batch]).take([row]).to_batches()
            found = validation_api.validate_instance(one, options, "SERVING")
            kinds = [reason.type for info in found.anomaly_info.values() for reason in info.reason]
            theirs.append(sorted(anomalies_pb2.AnomalyInfo.Type.Name(kind) for kind in kinds))
        facts[name] = {"values": [repr(value) for value in values], "ours": list(map(sorted, ours)), "tfdv": theirs}
    return facts


def split_of_a_table(context: StepContext) -> dict[str, Any]:
    """A table whose rows break all sorts of rules, split; TFDV's verdict on each row, and on the good ones together."""
    table, schema = broken_table(4000), _schema(_BROKEN_SCHEMA)
    folder = context.scratch / "table"
    folder.mkdir()
    for part in range(4):
        pq.write_table(table.slice(part * 1000, 1000), folder / f"{part}.parquet", row_group_size=300)
    split = split_anomalous(folder, schema, context.scratch / "good", context.scratch / "quarantine")
    good, quarantined = (pq.read_table(context.scratch / name) for name in ("good", "quarantine"))
    few = table.slice(0, 200)
    split_anomalous(few, schema, context.scratch / "few-good", context.scratch / "few-quarantine")
    return {
        "rows": [split.counts.rows_in, split.counts.rows_out, dict(split.counts.rejected)],
        "by_feature": split.by_feature,
        "keys": sorted(good["key"].to_pylist() + quarantined["key"].to_pylist()) == sorted(table["key"].to_pylist()),
        "columns": [
            good.schema.equals(table.schema),
            quarantined.drop(["anomaly_reasons"]).schema.equals(table.schema),
        ],
        "reasons": {row["key"]: row["anomaly_reasons"] for row in quarantined.slice(0, 400).to_pylist()},
        "before": _kinds(table, schema),
        "after": _kinds(good, schema),
        "few_quarantined": sorted(pq.read_table(context.scratch / "few-quarantine")["key"].to_pylist()),
        "few_by_tfdv": _anomalous_by_beam(few, schema, context.scratch / "beam"),
        "few_missing": few.filter(few["count"].is_null())["key"].to_pylist(),
    }


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


def refused_sources(context: StepContext) -> dict[str, str]:
    """What the splitting of unusable sources says."""
    from airflow_hops.artifacts import BadInput

    schema = _schema(f'{_ENVIRONMENTS} feature {{ name: "x" type: INT }}')
    folder = context.scratch / "corrupt"
    folder.mkdir()
    pq.write_table(pa.table({"x": [1]}), folder / "a.parquet")
    (folder / "b.parquet").write_bytes((folder / "a.parquet").read_bytes()[:100])
    (context.scratch / "g").mkdir()
    pq.write_table(pa.table({"x": [1, 2]}), context.scratch / "g" / "part-00000.parquet")
    tried = {
        "corrupt": lambda: split_anomalous(folder, schema, context.scratch / "new", context.scratch / "q"),
        "onto_itself": lambda: _split(context, context.scratch / "g", schema),
        "one_folder": lambda: split_anomalous(
            pa.table({"x": [1]}), schema, context.scratch / "g", context.scratch / "g"
        ),
        "others_files": lambda: split_anomalous(pa.table({"x": [1]}), schema, context.scratch / "new", folder),
        "nothing": lambda: _split(context, context.scratch / "nowhere", schema),
        "taken": lambda: _split(context, pa.table({"x": [1], "anomaly_reasons": ["?"]}), schema),
        "environment": lambda: _split(context, pa.table({"x": [1]}), schema, environment="PRODUCTION"),
    }
    messages = {}
    for name, attempt in tried.items():
        try:
            attempt()
        except BadInput as error:
            messages[name] = str(error)
    assert pq.read_table(context.scratch / "g").num_rows == 2
    assert not (context.scratch / "new").exists()
    assert not (context.scratch / "q").exists()
    return messages


def other_shapes(context: StepContext) -> dict[str, Any]:
    """Splits of sources that are awkward: no rows, a missing column, a column of another type, late columns."""
    schema = _schema('feature { name: "x" type: INT presence { min_fraction: 0.5 } int_domain { max: 1 } }')
    lines = context.scratch / "lines.jsonl"
    lines.write_text("".join(json.dumps({"x": 1} if n < 3000 else {"x": 2, "late": n}) + "\n" for n in range(3010)))
    sources = {
        "no_rows": pa.table({"x": pa.array([], pa.int64())}),
        "no_column": pa.table({"y": [1, 2]}),
        "other_type": pa.table({"x": pa.array(["1", None])}),
        "late_column": lines,
        "dictionary": pa.table({"x": pa.array([1, 2, None]).dictionary_encode()}),
        "narrow": pa.table({"x": pa.array([1, 2, None], pa.int8())}),
        "unsigned": pa.table({"x": pa.array([1, 2**64 - 1, None], pa.uint64())}),
        "of_one_size": pa.table({"x": pa.array([[1, 1], [1, 5]], pa.list_(pa.int64(), 2))}),
        "sliced": pa.table({"x": pa.array([[5], [1], None, [1, 2]])}).slice(1),
    }
    return {name: _outcome(_split(context, source, schema), context) for name, source in sources.items()}


def numbers_of_rows(context: StepContext) -> dict[str, Any]:
    """Severities of a change in the number of rows, and of too few."""
    from airflow_hops.runtime.statistics import generate_statistics
    from airflow_hops.runtime.validation import list_anomalies, validate_statistics

    few, many = (generate_statistics(pa.table({"x": [1] * rows}), workers=1) for rows in (3, 300))
    found = {}
    for name, current, previous, constraint in (
        ("fewer", few, many, "num_examples_drift_comparator { min_fraction_threshold: 0.5 }"),
        ("more", many, few, "num_examples_drift_comparator { max_fraction_threshold: 2 }"),
        ("too few", few, None, "min_examples_count: 10"),
    ):
        schema = _schema(f'feature {{ name: "x" type: INT }} dataset_constraints {{ {constraint} }}')
        anomalies = list_anomalies(validate_statistics(current, schema, previous=previous), "train")
        found[name] = [[anomaly.feature, anomaly.severity, *anomaly.types] for anomaly in anomalies]
    return found


def dotted_names(context: StepContext) -> list[list[Any]]:
    """Anomalies of columns with a dot in their names; few rows of ``a.b`` are quarantined, ``y.z`` has one class."""
    from airflow_hops.runtime.statistics import generate_statistics
    from airflow_hops.runtime.validation import list_anomalies, validate_statistics
    from airflow_hops.runtime.validation.quarantine import relax

    schema = _schema('feature { name: "a.b" type: INT int_domain { max: 1 } } feature { name: "y.z" type: BYTES }')
    table = pa.table({"a.b": [1] * 99 + [5], "y.z": [1] * 100})
    anomalies = validate_statistics(generate_statistics(table, workers=1), schema, label="y.z")
    relax(anomalies, _split(context, table.select(["a.b"]), schema), 0.05)
    return [[found.feature, found.severity, *found.types] for found in list_anomalies(anomalies, "train")]


def _outcome(split: Any, context: StepContext) -> dict[str, Any]:
    quarantine = context.scratch / "q"
    rows = pq.read_table(quarantine).to_pylist() if quarantine.exists() else []
    good = pq.read_table(context.scratch / "g")
    assert good.num_rows == split.good
    assert len(rows) == split.counts.check("split").rows_rejected
    return {"good": split.good, "reasons": [row["anomaly_reasons"] for row in rows][:3], "columns": good.column_names}


def _split(context: StepContext, source: Any, schema: Any, **options: Any) -> Any:
    return split_anomalous(source, schema, context.scratch / "g", context.scratch / "q", **options)


def _schema(text: str) -> Any:
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    shared = 'string_domain { name: "shared" value: "a" value: "b" }'
    environments = "" if _ENVIRONMENTS in text else _ENVIRONMENTS
    return text_format.Parse(f"{text} {shared} {environments}", schema_pb2.Schema())


def _kinds(table: pa.Table, schema: Any) -> dict[str, list[str]]:
    """TFDV's anomalies of a table, by feature."""
    import tensorflow_data_validation as tfdv
    from tensorflow_data_validation.statistics import stats_impl
    from tensorflow_metadata.proto.v0 import anomalies_pb2

    (batch,) = table.combine_chunks().to_batches()
    statistics = stats_impl.generate_statistics_in_memory(as_lists(batch), tfdv.StatsOptions(schema=schema))
    found = tfdv.validate_statistics(statistics, schema, environment="TRAINING")
    return {
        name: sorted(anomalies_pb2.AnomalyInfo.Type.Name(reason.type) for reason in info.reason)
        for name, info in found.anomaly_info.items()
    }


def _anomalous_by_beam(table: pa.Table, schema: Any, folder: Path) -> list[str]:
    """Keys of the rows that TFDV's Beam transform finds anomalous."""
    import apache_beam as beam
    import tensorflow_data_validation as tfdv
    from tensorflow_data_validation.api import validation_api

    folder.mkdir()
    (batch,) = table.combine_chunks().to_batches()
    lists = as_lists(batch)
    rows = [
        pa.RecordBatch.from_arrays([column.take(pa.array([row])) for column in lists.columns], lists.schema.names)
        for row in range(lists.num_rows)
    ]
    with beam.Pipeline() as pipeline:
        _ = (
            pipeline
            | beam.Create(rows)
            | validation_api.IdentifyAnomalousExamples(tfdv.StatsOptions(schema=schema))
            | beam.Map(lambda found: found[1].column(0).to_pylist()[0][0].decode())
            | beam.io.WriteToText(str(folder / "keys"))
        )
    return sorted({line for path in folder.iterdir() for line in path.read_text().split()})
