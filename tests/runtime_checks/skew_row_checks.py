"""Checks of row-level skew against TFDV's own detector, and of what a drift does to predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.artifacts import Artifact, BadInput
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


def write_model(folder: Path) -> Path:
    """A SavedModel whose answers are known: 0.5 + 0.05 x - 0.1 y, 0.2 more where red, 0.1 more where m is missing."""
    import tensorflow as tf

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.float32, "x"),
            tf.TensorSpec([None], tf.float32, "y"),
            tf.TensorSpec([None], tf.float32, "m"),
            tf.TensorSpec([None], tf.string, "colour"),
            tf.TensorSpec([None], tf.int64, "unused"),
        ]
    )
    def serve(x: Any, y: Any, m: Any, colour: Any, unused: Any) -> Any:
        red = tf.where(colour == b"red", 0.2, 0.0)
        lost = tf.where(tf.math.is_nan(m), 0.1, 0.0)
        return {"probability": 0.5 + 0.05 * x - 0.1 * y + red + lost + 0.0 * tf.cast(unused, tf.float32)}

    module = tf.Module()
    module.serve = serve
    tf.saved_model.save(module, str(folder), signatures={"serving_default": serve})
    return folder


def model_rows(rows: int, seed: int, *, drifted: bool = False) -> pa.Table:
    """Rows for that model: drifted ones have x one higher, red three times of four, m lost half of the time."""
    random = np.random.default_rng(seed)
    red = random.random(rows) < (0.75 if drifted else 0.5)
    lost = random.random(rows) < (0.5 if drifted else 0.0)
    return pa.table(
        {
            "x": random.normal(1.0 if drifted else 0.0, 1.0, rows),
            "y": random.normal(size=rows),
            "m": pa.array(random.normal(size=rows), mask=lost),
            "colour": pa.array(np.where(red, "red", random.choice(["blue", "green"], rows))),
            "unused": random.integers(0, 5, rows) + 3 * drifted,
        }
    )


def attribute(context: StepContext) -> dict[str, Any]:
    """Effects of what has drifted, and of what has not."""
    from airflow_hops.runtime.skew.attribution import attribute_drift

    model = write_model(context.scratch / "model")
    reference, same = model_rows(60_000, 1), model_rows(30_000, 2)
    drifted = model_rows(30_000, 3, drifted=True)
    pq.write_table(drifted, context.scratch / "drifted.parquet", row_group_size=1000)
    found = {
        "drifted": attribute_drift(model, reference, context.scratch / "drifted.parquet"),
        "again": attribute_drift(model, reference, drifted),
        "same": attribute_drift(model, reference, same),
        "two": attribute_drift(model, reference, drifted.slice(0, 50), features=["x", "y"], rows=20),
        "back": attribute_drift(model, drifted, reference, features=["x", "m"]),
    }
    return {name: {**a.to_dict(), "names": list(a.effects)} for name, a in found.items()}


def restored(context: StepContext) -> dict[str, Any]:
    """Whether restored values have the reference's distribution, and how few have changed."""
    from airflow_hops.runtime.skew.attribution import restore

    random = np.random.default_rng(0)
    low, high = random.normal(size=4000), random.normal(3.0, 2.0, size=4000)
    whole = np.round(random.normal(size=4000)).astype(np.int64)
    holes = np.where(random.random(4000) < 0.25, np.nan, high)
    text = np.array([b"a"] * 700 + [b"b"] * 200 + [b""] * 100, object)
    more = np.array([b"a"] * 1000 + [b"c"] * 600 + [b""] * 400, object)
    back = restore(high, low, random)
    words, filled, emptied = restore(text, more, random), restore(holes, low, random), restore(low, holes, random)
    return {
        "same_values": bool((np.sort(back) == np.sort(low)).all()),
        "same_order": bool((np.argsort(back) == np.argsort(high)).all()),
        "same_integers": bool((np.sort(restore(whole, whole[::-1], random)) == np.sort(whole)).all()),
        "kept_integers": bool((restore(whole, whole[::-1], random) == whole).all()),
        "words": {word.decode(): int((words == word).sum()) for word in (b"a", b"b", b"c", b"")},
        "words_changed": int((words != text).sum()),
        "filled": int(np.isnan(filled).sum()),
        "filled_in_range": bool(low.min() <= filled.min() and filled.max() <= low.max()),
        "emptied": float(np.isnan(emptied).mean()),
        "gone": int(np.isnan(restore(low, np.full(10, np.nan), random)).sum()),
        "from_nothing": int(np.isnan(restore(np.full(10, np.nan), low, random)).sum()),
    }


def attribution_errors(context: StepContext) -> dict[str, str]:
    """What is said of what cannot be attributed."""
    from airflow_hops.runtime.skew.attribution import attribute_drift

    model = write_model(context.scratch / "model")
    rows = model_rows(100, 1)
    unused = pa.array([None] * 50 + [1] * 50, pa.int64())
    index = rows.schema.get_field_index("unused")
    cases: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
        "no_model": (context.scratch / "nothing", rows, rows, {}),
        "column": (model, rows, rows.drop(["y"]), {}),
        "no_rows": (model, rows, rows.slice(0, 0), {}),
        "integer": (model, rows.set_column(index, "unused", unused), rows, {}),
        "infinite": (model, rows, rows.set_column(0, "x", pa.array([np.inf] * 100)), {}),
        "few": (model, rows, rows, {"rows": 1}),
    }
    found = {}
    for name, (of, reference, current, options) in cases.items():
        try:
            attribute_drift(of, reference, current, **options)
            found[name] = "no error"
        except BadInput as error:
            found[name] = str(error)
    return found


def write_temperature_model(context: StepContext) -> Artifact:
    """A model artifact that says 0.5 at 40 °F, and 0.005 more for each degree."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "temp")])
    def serve(temp: Any) -> Any:
        return {"probability": 0.5 + 0.005 * (tf.where(tf.math.is_nan(temp), 40.0, temp) - 40.0)}

    module = tf.Module()
    module.serve = serve
    with context.output() as writer:
        tf.saved_model.save(module, str(writer.path / "saved_model"), signatures={"serving_default": serve})
        return writer.commit()


def write_drift_schema(context: StepContext) -> Artifact:
    """The schema with drift comparators of two features."""
    from airflow_hops.runtime.schema import SCHEMA_FILE, load_schema

    schema = load_schema(context.local("schema") / SCHEMA_FILE)
    for feature in schema.feature:
        feature.ClearField("drift_comparator")
        if feature.name == "temp":
            feature.drift_comparator.jensen_shannon_divergence.threshold = 0.3
        if feature.name == "carrier":
            feature.drift_comparator.infinity_norm.threshold = 0.2
    with context.output() as writer:
        (writer.path / SCHEMA_FILE).write_text(str(schema))
        return writer.commit(properties=context.input("schema").properties)
