"""Checks of row-level skew against TFDV's own detector, and of what a drift does to predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.artifacts import BadInput
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.skew.rows import detect_row_skew
from airflow_hops.runtime.statistics.arrow_lists import as_lists

AWKWARD = [None, np.nan, np.inf, -np.inf, 0.0, -0.0, 1.25, 1.251, 2.5, 1e-9, 3.4e38]


def awkward_tables(rows: int = 240) -> tuple[pa.Table, pa.Table]:
    """Training and serving rows with values of every kind, of which some differ, some are gone, some are repeated."""
    random = np.random.default_rng(5)

    def drawn(values: Sequence[Any], kind: Any, share: float = 0.3) -> tuple[pa.Array, pa.Array]:
        base = [values[i] for i in random.integers(0, len(values), rows)]
        other = [values[i] for i in random.integers(0, len(values), rows)]
        changed = random.random(rows) < share
        return pa.array(base, kind), pa.array(
            [o if c else b for b, o, c in zip(base, other, changed, strict=True)], kind
        )

    lists = [None, [], [1], [1, 2], [1, 2, 3], [2, 1], [3]]
    texts = [None, [], [""], ["a"], ["a", "b"], ["b", "a"], ["ü"]]
    pairs = {
        "float": drawn(AWKWARD, pa.float32()),
        "double": drawn([v and v * 1.1 for v in AWKWARD[:-1]], pa.float64()),
        "integer": drawn([None, 0, 1, -1, 2**63 - 1, -(2**63)], pa.int64()),
        "text": drawn([None, "", "a", "A", "longer text"], pa.string()),
        "bytes": drawn([b"\xff", b"\x00", b"", None], pa.binary()),
        "integers": drawn(lists, pa.list_(pa.int64())),
        "floats": drawn([v and [float(x) / 3 for x in v] for v in lists], pa.large_list(pa.float32())),
        "texts": drawn(texts, pa.list_(pa.string())),
        "flag": drawn([True, False, None], pa.bool_()),
        "same": drawn([1.5, 2.5], pa.float64(), 0.0),
        "gone": (pa.array(["here"] * rows), pa.nulls(rows, pa.string())),
        "never": (pa.nulls(rows, pa.float64()), pa.nulls(rows, pa.float64())),
        "other_type": (pa.array(np.arange(rows) % 5), pa.array(np.arange(rows) % 5 + 0.0)),
    }
    name = pa.array([None if i % 37 == 0 else f"row {i // 2 if i % 11 == 0 else i}" for i in range(rows)])
    day = pa.array([[i % 7] if i % 53 else [] for i in range(rows)])
    base = pa.table({"day": day, "name": name, **{n: b for n, (b, _) in pairs.items()}, "label": pa.array(range(rows))})
    test = pa.table({"name": name, **{n: t for n, (_, t) in pairs.items()}, "day": day, "sent": pa.array(range(rows))})
    served = random.permutation(rows)[: rows * 2 // 3]
    return base.slice(0, rows - 20), test.take(pa.array([*served, *served[:12]]))


def compare_with_tfdv(context: StepContext, **options: Any) -> dict[str, Any]:
    """What this package and TFDV's detector say of the same rows."""
    base, test = awkward_tables()
    sides = _in_batches(base, 50), _in_batches(test, 64)
    report = detect_row_skew(*sides, identifiers=["name", "day"], ignore=["sent"], **options)
    return {"ours": report.to_dict(), "tfdv": _by_tfdv(base, test, options)}


def same_from_every_source(context: StepContext) -> list[dict[str, Any]]:
    """The same rows as files and streams; a stream can be read once."""
    base, test = awkward_tables()
    keys = ["name", "integer"]
    base, test = (table.select([*keys, "float", "text", "integers"]) for table in (base, test))
    folder = context.scratch / "training"
    folder.mkdir()
    for part in range(3):
        pq.write_table(base.slice(part * 80, 80), folder / f"part-{part}.parquet", row_group_size=30)
    pq.write_table(test, context.scratch / "serving.parquet", row_group_size=50)
    sources = [
        (base, test),
        (str(folder), context.scratch / "serving.parquet"),
        (iter(base.to_batches(max_chunksize=70)), test.to_batches(max_chunksize=20)),
    ]
    return [detect_row_skew(*pair, identifiers=keys, examples=0).to_dict() for pair in sources]


def errors(context: StepContext) -> dict[str, str]:
    """What is said of what cannot be joined."""
    base, test = awkward_tables()
    pq.write_table(test, context.scratch / "serving.parquet")
    cases: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "none": (base, test, {"identifiers": []}),
        "text": (base, test, {"identifiers": "name"}),
        "absent": (base, context.scratch / "serving.parquet", {"identifiers": ["name", "number"]}),
        "absent_in_training": (base, test, {"identifiers": ["sent"]}),
        "other_type": (base, test, {"identifiers": ["other_type"]}),
        "confusion": (base, test, {"identifiers": ["name"], "confusion": ["integer"]}),
        "confusion_of_lists": (base, test, {"identifiers": ["name"], "confusion": ["texts"]}),
        "confusion_of_nothing": (base, test, {"identifiers": ["name"], "confusion": ["colour"]}),
        "confusion_of_identifier": (base, test, {"identifiers": ["name"], "confusion": ["name"]}),
        "time": (pa.table({"name": ["a"], "when": pa.array([0], pa.timestamp("s"))}), test, {"identifiers": ["name"]}),
    }
    found = {}
    for name, (training, serving, options) in cases.items():
        try:
            detect_row_skew(training, serving, **options)
            found[name] = "no error"
        except BadInput as error:
            found[name] = str(error)
    return found


def memory_and_order(context: StepContext) -> dict[str, Any]:
    """Many pairs of one identifier, and the draw of examples."""
    from airflow_hops.runtime.skew.rows import join

    ones = pa.table({"id": [1] * 1000, "x": np.arange(1000.0)})
    whole = detect_row_skew(ones, ones, identifiers=["id"], allow_duplicate_identifiers=True, examples=5)
    join.PAIRS_AT_ONCE = 7_000
    parts = detect_row_skew(ones, ones, identifiers=["id"], allow_duplicate_identifiers=True, examples=5)
    rows = pa.table({"id": np.arange(10_000), "x": np.arange(10_000.0)})
    moved = rows.set_column(1, "x", pa.array(np.arange(10_000.0) + 1))
    drawn = detect_row_skew(rows, moved, identifiers=["id"], examples=100).features["x"].examples
    return {
        "whole": whole.to_dict()["matches"] | {"pairs": whole.pairs, "differ": whole.features["x"].diff_count},
        "parts": parts.to_dict()["matches"] | {"pairs": parts.pairs, "differ": parts.features["x"].diff_count},
        "drawn": [example["identifier"]["id"] for example in drawn],
        "first": drawn[0],
        "none": detect_row_skew(rows, moved.slice(0, 0), identifiers=["id"]).to_dict(),
        "strangers": detect_row_skew(rows.slice(0, 10), rows.slice(10), identifiers=["id"]).to_dict(),
    }


def _in_batches(table: pa.Table, rows: int) -> Any:
    return lambda columns: (table.select(columns) if columns else table).to_batches(max_chunksize=rows)


def _by_tfdv(base: pa.Table, test: pa.Table, options: Mapping[str, Any]) -> dict[str, Any]:
    import apache_beam as beam
    from google.protobuf.json_format import MessageToDict
    from tensorflow_data_validation.skew import feature_skew_detector as detector

    _FOUND.clear()
    with beam.Pipeline() as pipeline:
        sides = tuple(
            pipeline | name >> beam.Create(_examples(table)) for name, table in (("base", base), ("test", test))
        )
        results = sides | detector.DetectFeatureSkewImpl(
            ["name", "day"],
            ["sent"],
            sample_size=100_000,
            float_round_ndigits=options.get("float_rounding"),
            allow_duplicate_identifiers=options.get("allow_duplicate_identifiers", False),
            confusion_configs=[detector.ConfusionConfig(name) for name in options.get("confusion", ())],
        )
        for key, values in results.items():
            _ = values | f"keep {key}" >> beam.Map(_keep, key)
    return {
        key: [
            MessageToDict(value, preserving_proto_field_name=True, including_default_value_fields=True)
            for value in values
        ]
        for key, values in _FOUND.items()
        if key != detector.SKEW_PAIRS_KEY
    } | {"pairs": len(_FOUND.get(detector.SKEW_PAIRS_KEY, []))}


_FOUND: dict[str, list[Any]] = {}


def _keep(value: Any, key: str) -> None:
    _FOUND.setdefault(key, []).append(value)


def _examples(table: pa.Table) -> list[Any]:
    import tensorflow as tf
    from tfx_bsl.coders.example_coder import RecordBatchToExamples

    batch = as_lists(table.combine_chunks().to_batches()[0])
    narrow = [c.cast(pa.large_list(pa.float32())) if _doubles(c.type) else c for c in batch.columns]
    batch = pa.RecordBatch.from_arrays(narrow, batch.schema.names)
    return [tf.train.Example.FromString(example) for example in RecordBatchToExamples(batch)]


def _doubles(kind: Any) -> bool:
    return bool(pa.types.is_float64(kind.value_type)) if hasattr(kind, "value_type") else False
