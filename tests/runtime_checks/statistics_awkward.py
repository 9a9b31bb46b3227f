"""Statistics of awkward columns and files, of several threads at once, and of processes that end before their time."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv, ipc

from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.orphans import descendants
from airflow_hops.runtime.statistics import generate_statistics


def rows_without_features(context: StepContext) -> dict[str, list[int]]:
    """By format, the rows of a folder whose middle file has the excluded column alone, and how many lack ``x``."""
    writers: dict[str, Callable[[pa.Table, Path], Any]] = {
        "parquet": pq.write_table, "csv": csv.write_csv, "jsonl": _write_jsonl, "arrow": _write_arrow,
        "tfrecord": _write_examples,
    }  # fmt: skip
    found = {}
    for format_, write in writers.items():
        folder = context.scratch / format_
        folder.mkdir()
        write(pa.table({"x": [1, 2], "id": [1, 2]}), folder / f"a.{format_}")
        write(pa.table({"id": range(300)}), folder / f"b.{format_}")
        write(pa.table({"x": [7], "id": [1]}), folder / f"c.{format_}")
        dataset = generate_statistics(folder, exclude=["id"], workers=2).datasets[0]
        (feature,) = dataset.features
        found[format_] = [dataset.num_examples, feature.num_stats.common_stats.num_missing]
    return found


def _write_jsonl(table: pa.Table, path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def _write_arrow(table: pa.Table, path: Path) -> None:
    with ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def _write_examples(table: pa.Table, path: Path) -> None:
    import tensorflow as tf

    def feature(value: Any) -> Any:
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))

    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in table.to_pylist():
            there = {name: feature(value) for name, value in row.items() if value is not None}
            writer.write(tf.train.Example(features=tf.train.Features(feature=there)).SerializeToString())


def late_examples(context: StepContext) -> dict[str, Any]:
    """Top values of a feature of very many distinct ones, which the first records of a TFRecord lack."""
    texts = [None] * 300 + [f"hot-{i % 8}" if i % 4 == 0 else f"v{i}" for i in range(30_000)]
    path = context.scratch / "late.tfrecord"
    _write_examples(pa.table({"i": range(len(texts)), "late": texts}), path)
    features = {feature.path.step[0]: feature for feature in generate_statistics(path).datasets[0].features}
    top = features["late"].string_stats.top_values[:2]
    return {"top": sorted([value.value, value.frequency] for value in top)}


def types_as_tfdv(context: StepContext) -> dict[str, list[str]]:
    """Differences from TFDV, by column, of types that it knows under another name; each is given as TFDV wants it."""
    import tensorflow_data_validation as tfdv
    from statistics_equality import compare
    from tensorflow_data_validation.statistics import stats_impl

    rows = 70_000
    odd = [i % 2 == 0 for i in range(rows)]
    codes = [b"%04d" % (i % 20) if i % 3 else None for i in range(rows)]
    halves = [np.float16(i % 7) if i % 5 else None for i in range(rows)]
    structs = [{"x": i % 5, "code": b"abcd"} if there else None for i, there in enumerate(odd)]
    pairs = [[1.0, float(i % 3)] if i % 4 else None for i in range(rows)]
    bytes_list, float_list = pa.list_(pa.binary()), pa.list_(pa.float32())
    inner = pa.struct([("x", pa.list_(pa.int64())), ("code", bytes_list)])
    cases = {
        "code": (pa.array(codes, pa.binary(4)), pa.array([v and [v] for v in codes], bytes_list)),
        "half": (pa.array(halves, pa.float16()), pa.array([None if v is None else [v] for v in halves], float_list)),
        "pair": (pa.array(pairs, pa.list_(pa.float32(), 2)), pa.array(pairs, float_list)),
        "struct": (
            pa.array(structs, pa.struct([("x", pa.int64()), ("code", pa.binary(4))])),
            pa.array([v and [{"x": [v["x"]], "code": [v["code"]]}] for v in structs], pa.list_(inner)),
        ),
    }
    found = {}
    for name, (given, wanted) in cases.items():
        theirs = stats_impl.generate_statistics_in_memory(
            pa.RecordBatch.from_arrays([wanted], [name]), tfdv.StatsOptions()
        )
        # The last rows are a slice of their own.
        found[name] = compare(generate_statistics(pa.table({name: given})), theirs, pa.table({}))
    return found


def empty_lists(context: StepContext) -> dict[str, list[Any]]:
    """Slices, and a column that only a file without rows has, of Arrow files whose lists are all missing."""
    import tensorflow_data_validation as tfdv

    by_group = tfdv.experimental_get_feature_value_slicer({"g": None})
    options = tfdv.StatsOptions(experimental_slice_functions=[by_group])
    rows = 60_000
    kinds = [pa.int64(), pa.list_(pa.float32()), pa.bool_(), pa.string(), pa.struct([("a", pa.int64())])]
    found = {}
    for number, kind in enumerate(kinds):
        folder = context.scratch / f"empty-{number}"
        folder.mkdir()
        group = [f"g{i % 2}" for i in range(rows)]
        _write_arrow(pa.table({"x": pa.nulls(rows, pa.list_(kind)), "g": group}), folder / "a.arrow")
        _write_arrow(pa.table({"ghost": pa.array([], pa.list_(kind))}), folder / "b.arrow")
        whole, *slices = generate_statistics(folder, options=options).datasets
        features = sorted({feature.path.step[0] for feature in whole.features})
        found[str(kind)] = [features, [int(dataset.num_examples) for dataset in slices]]
    return found


def many_slices(context: StepContext) -> dict[str, Any]:
    """What waits in the slices after each batch, with a bound of 100 kB, and the slices' rows in the end."""
    import tensorflow_data_validation as tfdv

    from airflow_hops.runtime.statistics import combiners as module

    rows, slices = 40_000, 200
    table = pa.table({"g": [f"g{i % slices}" for i in range(rows)], "x": np.arange(rows, dtype=float)})
    options = tfdv.StatsOptions(experimental_slice_functions=[tfdv.experimental_get_feature_value_slicer({"g": None})])
    bound, module._WAITING_BYTES = module._WAITING_BYTES, 100_000
    try:
        combiners = module.Combiners(options)
        accumulator, waiting = combiners.create(), []
        for batch in table.to_batches(max_chunksize=4000):
            combiners.add(accumulator, batch)
            waiting.append(sum(part.waiting_bytes for part in accumulator.slices.values()))
        found = combiners.extract(accumulator)
    finally:
        module._WAITING_BYTES = bound
    mean = found.datasets[1].features[1].num_stats.mean
    return {"waiting": waiting, "rows": sorted({int(d.num_examples) for d in found.datasets}), "mean": mean}


def rows_without_default_generators(context: StepContext) -> list[int]:
    """Rows read and sampled where no generator counts examples."""
    import tensorflow_data_validation as tfdv

    from airflow_hops.runtime.statistics.generate import collect_statistics

    options = tfdv.StatsOptions(add_default_generators=False, enable_semantic_domain_stats=True)
    found = collect_statistics(pa.table({"x": ["a"] * 70_000}), options=options, workers=2)
    return [found.rows, found.sampled]


def threads(context: StepContext) -> list[list[Any]]:
    """The feature and the rows that each of several threads found in a source of its own, all at once."""
    found: list[list[Any]] = [[] for _ in range(4)]

    def work(number: int) -> None:
        table = pa.table({f"x{number}": np.arange(200_000 + number)})
        dataset = generate_statistics(table, workers=2).datasets[0]
        found[number] = [dataset.features[0].path.step[0], int(dataset.num_examples)]

    running = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return found


def ends(context: StepContext) -> dict[str, Any]:
    """What comes of processes that are killed, that raise, and of an interrupt; and who is left each time."""
    import tensorflow_data_validation as tfdv

    parent = os.getpid()
    before = set(descendants(parent))
    table = pa.table({"x": np.arange(200_000)})

    def killed(batch: pa.RecordBatch) -> Any:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        yield "slice", batch

    def interrupting(batch: pa.RecordBatch) -> Any:
        os.kill(parent, signal.SIGINT)
        time.sleep(600)
        yield "slice", batch

    def raising(batch: pa.RecordBatch) -> Any:
        raise RuntimeError("no slices today")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    found: dict[str, Any] = {}
    handler = signal.signal(signal.SIGINT, interrupted)
    try:
        for function in (killed, interrupting, raising):
            options = tfdv.StatsOptions(experimental_slice_functions=[function])
            try:
                generate_statistics(table, options=options, workers=2)
            except BaseException as error:
                left = len(set(descendants(parent)) - before)
                found[function.__name__] = [type(error).__name__, str(error), left]
    finally:
        signal.signal(signal.SIGINT, handler)
    return found


def refused(context: StepContext) -> dict[str, str]:
    """The messages of what a notebook may get wrong."""
    import pandas as pd
    import tensorflow_data_validation as tfdv

    twice = pa.Table.from_arrays([pa.array([1]), pa.array(["a"])], ["x", "x"])
    pq.write_table(twice, context.scratch / "twice.parquet")
    _write_arrow(twice, context.scratch / "twice.arrow")
    sources = {
        "table": twice, "batches": twice.to_batches(), "parquet": context.scratch / "twice.parquet",
        "arrow": context.scratch / "twice.arrow", "frame": pd.DataFrame({"x": [1]}),
    }  # fmt: skip
    found = {name: _message(source) for name, source in sources.items()}
    table = pa.table({"x": [1]})
    paths = tfdv.StatsOptions(feature_allowlist=[tfdv.FeaturePath(["x"])])
    options: dict[str, dict[str, Any]] = {
        "mapping": {"options": {"slice_by": ["x"]}}, "paths": {"options": paths}, "exclude": {"exclude": "x"},
        "workers": {"workers": "2"}, "sample": {"options": tfdv.StatsOptions(sample_rate=1e-12)},
    }  # fmt: skip
    return found | {name: _message(table, **some) for name, some in options.items()}


def _message(source: Any, **options: Any) -> str:
    from airflow_hops.artifacts import BadInput

    try:
        generate_statistics(source, **options)
    except BadInput as error:
        return str(error)
    return ""


def options_before_and_after(context: StepContext) -> dict[str, bool]:
    """Whether statistics leave what they were given, and TFDV, as it was."""
    import tensorflow_data_validation as tfdv
    from google.protobuf import text_format
    from tensorflow_data_validation.utils import quantiles_util
    from tensorflow_metadata.proto.v0 import schema_pb2

    histogram = quantiles_util.generate_equi_width_histogram
    text = "feature { name: 'late' type: INT int_domain { is_categorical: true } } feature { name: 'x' type: BYTES }"
    schema = text_format.Parse(text, schema_pb2.Schema())
    generators: list[Any] = []
    options = tfdv.StatsOptions(schema=schema, label_feature="late", weight_feature="w", generators=generators)
    table = pa.table({"x": ["a", "b"] * 50, "late": [0, 1] * 50, "w": [1.0, 2.0] * 50})
    before = dict(vars(options)), schema.SerializeToString(deterministic=True)
    first = generate_statistics(table, options=options)
    second = generate_statistics(table, options=options)
    return {
        "options": before == (dict(vars(options)), schema.SerializeToString(deterministic=True)) and not generators,
        "tfdv": quantiles_util.generate_equi_width_histogram is histogram,
        "same": first == second,
    }
