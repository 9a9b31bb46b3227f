"""Awkward tables and many options, TFDV's own statistics of them, and how two statistics differ."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow_data_validation as tfdv
from google.protobuf import json_format, text_format
from tensorflow_data_validation.statistics.generators import cross_feature_stats_generator as crosses
from tensorflow_data_validation.statistics.stats_impl import generate_statistics_in_memory
from tensorflow_data_validation.utils import slicing_util
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.public.proto import slicing_spec_pb2

from airflow_hops.core.profiles import BASE, own_profile
from airflow_hops.ml.statistics.arrow_lists import as_lists

QUERY = "SELECT STRUCT(carrier) FROM example.carrier"
HAS_SQL = own_profile() is BASE
CASES = (
    "mixed", "nested", "slices", "weighted_slices", "slicing_config", "buckets_of_some_features", "schema",
    "semantic_domains", "cross_features", "no_defaults", "many_strings", *["slicing_sql"] * HAS_SQL,
)  # fmt: skip
"""Names of :func:`cases` that this profile's TFDV has."""


def mixed_table(rows: int = 1500) -> pa.Table:
    """Columns of every type that has statistics, with what is awkward in them."""
    random = np.random.default_rng(1)
    floats = random.normal(size=rows)
    floats[::7] = np.nan
    missing = random.random(rows) < 0.2
    text = [None if gone else f"value-{int(v)}" for gone, v in zip(missing, random.exponential(5, rows), strict=True)]
    extremes = random.integers(-5, 5, rows)
    extremes[:2] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    return pa.table(
        {
            "float": pa.array(floats),
            "float32": pa.array(np.where(missing, None, floats), pa.float32(), from_pandas=True),
            "infinite": pa.array(np.where(missing, np.inf, floats)),
            "integer": pa.array(random.integers(0, 50, rows)),
            "extreme": pa.array(extremes),
            "text": pa.array(text),
            "bytes": pa.array([b"\xff\xfe" if gone else b"plain" for gone in missing]),
            "all_null": pa.nulls(rows, pa.float64()),
            "untyped": pa.nulls(rows),
            "empty_text": pa.array([""] * rows),
            "list": pa.array([[1.0] * (i % 4) for i in range(rows)]),
        }
    )


def nested_table(rows: int = 300) -> pa.Table:
    """Lists, lists of lists, structs and lists of structs, some of them missing or empty."""
    random = np.random.default_rng(3)
    words = np.array(["a", "bb", "ccc"])
    numbers = [None if i % 5 == 0 else list(range(i % 4)) for i in range(rows)]
    return pa.table(
        {
            "numbers": pa.array(numbers, pa.list_(pa.int64())),
            "large": pa.array(numbers, pa.large_list(pa.float32())),
            "words": pa.array([None if i % 7 == 0 else list(random.choice(words, i % 3)) for i in range(rows)]),
            "flags": pa.array([[True, False][: i % 3] for i in range(rows)], pa.list_(pa.bool_())),
            "table": pa.array([None if i % 6 == 0 else [[1] * (i % 3), [], [2]][: i % 4] for i in range(rows)]),
            "struct": pa.array([{"x": i, "y": f"v{i % 3}"} for i in range(rows)]),
            "structs": pa.array([[{"x": j, "z": [1.5] * j} for j in range(i % 3)] for i in range(rows)]),
            "deep": pa.array([[{"in": [{"x": i % 9}] * (i % 2)}] for i in range(rows)]),
        }
    )


def flights_like_table(rows: int = 1500) -> pa.Table:
    """Carriers, delays, a weight, a label and bytes."""
    random = np.random.default_rng(4)
    carrier = random.choice(["UA", "AA", "DL", "ZZ"], rows, p=[0.5, 0.3, 0.19, 0.01])
    delay = random.gamma(2.0, 10.0, rows) - 10
    return pa.table(
        {
            "carrier": pa.array(np.where(random.random(rows) < 0.05, None, carrier)),
            "hour": pa.array(random.integers(5, 24, rows)),
            "delay": pa.array(np.where(random.random(rows) < 0.1, None, delay)),
            "weight": pa.array(random.random(rows)),
            "late": pa.array((delay > 15).astype(np.int64)),
            "photo": pa.array([b"\xff\xfe" if value > 15 else b"plain" for value in delay]),
        }
    )


def text_table(rows: int = 200) -> pa.Table:
    """Sentences, times and e-mail addresses, for semantic domains."""
    sentences = ["The quick brown fox jumps over the lazy dog.", "It was a dark and stormy night, all over town."]
    return pa.table(
        {
            "sentence": pa.array([sentences[i % 2] * (1 + i % 3) for i in range(rows)]),
            "date": pa.array([f"2013-01-{1 + i % 28:02}" for i in range(rows)]),
            "epoch": pa.array([1_357_000_000 + 3600 * i for i in range(rows)]),
        }
    )


def many_strings(rows: int = 60_000) -> pa.Table:
    """More distinct strings than a sketch has buckets, a few of them frequent."""
    random = np.random.default_rng(5)
    rank = random.zipf(1.3, rows) % 40_000
    return pa.table({"id": pa.array([f"id-{i}" for i in range(rows)]), "zipf": pa.array([f"z{r}" for r in rank])})


def cases() -> dict[str, tuple[Callable[[], pa.Table], Callable[[], Any]]]:
    """The tables and options, by name."""
    by = slicing_util.get_feature_value_slicer
    config = text_format.Parse(
        "slicing_specs { feature_keys: 'carrier' feature_values { key: 'hour' value: '12' } }",
        slicing_spec_pb2.SlicingConfig(),
    )

    options = tfdv.StatsOptions
    typed = text_format.Parse(
        "feature { name: 'hour' type: INT int_domain { is_categorical: true } } "
        "feature { name: 'photo' type: BYTES image_domain {} } "
        "weighted_feature { name: 'w' feature { step: 'delay' } weight_feature { step: 'weight' } }",
        schema_pb2.Schema(),
    )
    return {
        "mixed": (mixed_table, options),
        "nested": (nested_table, options),
        "slices": (
            flights_like_table,
            lambda: options(experimental_slice_functions=[by({"carrier": None}), by({"carrier": None, "hour": [8]})]),
        ),
        "weighted_slices": (
            flights_like_table,
            lambda: options(weight_feature="weight", experimental_slice_functions=[by({"carrier": [b"ZZ", b"UA"]})]),
        ),
        "slicing_config": (flights_like_table, lambda: options(slicing_config=config)),
        "buckets_of_some_features": (
            flights_like_table,
            lambda: options(
                feature_allowlist=["delay", "carrier", "nowhere"],
                num_top_values=2,
                num_rank_histogram_buckets=3,
                num_values_histogram_buckets=4,
                num_histogram_buckets=7,
                num_quantiles_histogram_buckets=5,
                frequency_threshold=10,
            ),
        ),
        "schema": (flights_like_table, lambda: options(schema=typed)),
        "semantic_domains": (text_table, lambda: options(enable_semantic_domain_stats=True)),
        "cross_features": (
            flights_like_table,
            lambda: options(generators=[crosses.CrossFeatureStatsGenerator([("delay", "hour")], sample_rate=1.0)]),
        ),
        "no_defaults": (text_table, lambda: options(add_default_generators=False, enable_semantic_domain_stats=True)),
        "many_strings": (many_strings, options),
        "slicing_sql": (flights_like_table, lambda: options(experimental_slice_sqls=[QUERY])),
    }


@contextmanager
def beam_pipeline() -> Iterator[Any]:
    """A pipeline of Beam's, which looks at each function's signature once, and not at every step of planning."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.transforms import userstate

    # TFDV 1.16's lift does not pass the type check of this Beam.
    options = PipelineOptions(pipeline_type_check=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(userstate, "get_dofn_specs", cache(userstate.get_dofn_specs))
        with beam.Pipeline(options=options) as pipeline:
            yield pipeline


def by_beam() -> dict[str, Any]:
    """The statistics of every case by TFDV's own pipeline, by name."""
    import apache_beam as beam

    with tempfile.TemporaryDirectory() as folder:
        with beam_pipeline() as pipeline:
            for name in CASES:
                make, options = cases()[name]
                batches = [as_lists(batch) for batch in make().to_batches(max_chunksize=1000)]
                _ = (
                    pipeline
                    | f"rows of {name}" >> beam.Create(batches)
                    | f"statistics of {name}" >> tfdv.GenerateStatistics(options())
                    | f"write {name}" >> tfdv.WriteStatisticsToBinaryFile(f"{folder}/{name}.pb")
                )
        return {name: tfdv.load_stats_binary(f"{folder}/{name}.pb") for name in CASES}


def in_memory(table: pa.Table, options: Any) -> Any:
    """The statistics of a table by TFDV without a pipeline: of all rows, and of each slice by itself."""
    rows = as_lists(table.combine_chunks().to_batches()[0])
    functions = list(options.experimental_slice_functions or [])
    if options.slicing_config and HAS_SQL:
        functions += slicing_util.convert_slicing_config_to_slice_functions_and_sqls(options.slicing_config)[0]
    elif options.slicing_config:
        functions += slicing_util.convert_slicing_config_to_slice_functions(options.slicing_config)
    if HAS_SQL and options.experimental_slice_sqls == [QUERY]:
        functions.append(slicing_util.get_feature_value_slicer({"carrier": None}))
    result = generate_statistics_in_memory(rows, options)
    for name, part in (slice_ for function in functions for slice_ in function(rows)):
        result.datasets.append(generate_statistics_in_memory(part, options).datasets[0])
        result.datasets[-1].name = name
    if functions:
        result.datasets[0].name = "All Examples"
    return result


def compare(ours: Any, theirs: Any, table: pa.Table) -> list[str]:
    """The differences of two statistics, but for what sketches and the order of sums may do."""
    if [d.name for d in ours.datasets] != sorted(
        (d.name for d in theirs.datasets), key=lambda n: (n != "All Examples", n)
    ):
        return [f"data sets: {[d.name for d in ours.datasets]}, {[d.name for d in theirs.datasets]}"]
    results: list[str] = []
    expected = {dataset.name: dataset for dataset in theirs.datasets}
    for dataset in ours.datasets:
        other = expected[dataset.name]
        mine = {tuple(f.path.step): f for f in dataset.features}
        wanted = {tuple(f.path.step): f for f in other.features}
        if mine.keys() != wanted.keys():
            results.append(f"{dataset.name}: features {sorted(mine)}, {sorted(wanted)}")
        for path in mine.keys() & wanted.keys():
            where = f"{dataset.name}/{'.'.join(path)}"
            values = _values(table, path)
            results += _differences(mine[path], wanted[path], where, values)
        for name in ("num_examples", "weighted_num_examples"):
            results += _differ(getattr(dataset, name), getattr(other, name), f"{dataset.name}.{name}")
        results += _messages(list(dataset.cross_features), list(other.cross_features), f"{dataset.name}.cross_features")
    return results[:20]


def _differences(ours: Any, theirs: Any, where: str, values: np.ndarray | None) -> list[str]:
    ours, theirs = _copy(ours), _copy(theirs)
    results = []
    if theirs.WhichOneof("stats") == "num_stats" and ours.WhichOneof("stats") == "num_stats":
        pairs = [(ours.num_stats, theirs.num_stats)]
        if theirs.num_stats.HasField("weighted_numeric_stats"):
            pairs.append((ours.num_stats.weighted_numeric_stats, theirs.num_stats.weighted_numeric_stats))
        for mine, other in pairs:
            results += _histograms(mine, other, where, values)
            mine.ClearField("histograms")
            other.ClearField("histograms")
            results += _near(mine.median, other.median, f"{where}.median", values)
            mine.median = other.median = 0
    elif theirs.WhichOneof("stats") == "string_stats" and ours.WhichOneof("stats") == "string_stats":
        mine, other = ours.string_stats.unique, theirs.string_stats.unique
        # The stated error of a sketch of 16,384 minima (Beyer et al., 2007) is 1 / sqrt(16,384).
        if other > 16_384 and abs(mine / other - 1) <= 4 / math.sqrt(16_384):
            ours.string_stats.unique = other
        for stats in (ours.string_stats, theirs.string_stats):
            _sort_ties(stats.top_values, "frequency", "value")
            _sort_ties(stats.rank_histogram.buckets, "sample_count", "label")
    return results + _messages([ours], [theirs], where)


def _sort_ties(values: Any, count: str, name: str) -> None:
    """Orders equally frequent values by name; those as rare as the last may be any, others were cut off."""
    for frequency in {getattr(value, count) for value in values}:
        tied = [value for value in values if getattr(value, count) == frequency]
        names = sorted(getattr(value, name) for value in tied)
        for value, text in zip(tied, names, strict=True):
            setattr(value, name, "" if values[-1] is tied[-1] and len(tied) > 1 else text)


def _histograms(ours: Any, theirs: Any, where: str, values: np.ndarray | None) -> list[str]:
    results = []
    for mine, other in zip(ours.histograms, theirs.histograms, strict=True):
        name = f"{where}.{'quantiles' if other.type == other.QUANTILES else 'histogram'}"
        results += _differ(mine.num_nan, other.num_nan, f"{name}.num_nan")
        total = sum(bucket.sample_count for bucket in other.buckets)
        # NumPy 2 computes bounds of float32 values in float32; ours are computed in float64 under both profiles.
        widest = max((abs(bucket.low_value) for bucket in other.buckets if math.isfinite(bucket.low_value)), default=0)
        for index, (bucket, wanted) in enumerate(zip(mine.buckets, other.buckets, strict=True)):
            if other.type == other.STANDARD:
                if not math.isclose(bucket.low_value, wanted.low_value, rel_tol=0, abs_tol=1e-6 * widest):
                    results += _differ(bucket.low_value, wanted.low_value, f"{name}[{index}].low")
            else:
                results += _near(bucket.high_value, wanted.high_value, f"{name}[{index}].high", values)
            if abs(bucket.sample_count - wanted.sample_count) > 0.02 * total + 1e-6:
                results.append(f"{name}[{index}]: {bucket.sample_count}, {wanted.sample_count} of {total}")
    return results


def _near(ours: float, theirs: float, where: str, values: np.ndarray | None) -> list[str]:
    """Whether two quantiles are so near that hardly any value lies between them."""
    if ours == theirs or values is None or not len(values):
        return _differ(ours, theirs, where)
    low, high = sorted((ours, theirs))
    between = np.count_nonzero((values > low) & (values < high)) / len(values)
    return [] if between <= 0.02 else [f"{where}: {ours}, {theirs}, {between:.3f} of the values between"]


def _values(table: pa.Table, path: tuple[str, ...]) -> np.ndarray | None:
    column = table[path[0]] if len(path) == 1 and path[0] in table.column_names else None
    if column is None or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return None
    return column.drop_null().to_numpy()


def _messages(ours: list[Any], theirs: list[Any], where: str) -> list[str]:
    return _differ([json_format.MessageToDict(m) for m in ours], [json_format.MessageToDict(m) for m in theirs], where)


def _differ(ours: Any, theirs: Any, where: str) -> list[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted({*ours, *theirs})
        return [d for key in keys for d in _differ(ours.get(key), theirs.get(key), f"{where}.{key}")]
    if isinstance(theirs, list) and isinstance(ours, list) and len(ours) == len(theirs):
        return [d for i, pair in enumerate(zip(ours, theirs, strict=True)) for d in _differ(*pair, f"{where}[{i}]")]
    if isinstance(theirs, float) and isinstance(ours, float):
        # The order in which floats are summed may differ, and with 2^63 among them it swallows what is small.
        slack = 0.1 if "extreme" in where else 0.0
        # TFDV's sketches take weights as float32.
        relative = 1e-6 if "weightedString" in where else 1e-9
        same = ours == theirs or math.isclose(ours, theirs, rel_tol=relative, abs_tol=slack)
        return [] if same or (math.isnan(ours) and math.isnan(theirs)) else [f"{where}: {ours!r}, {theirs!r}"]
    return [] if ours == theirs else [f"{where}: {ours!r}, {theirs!r}"]


def _copy(message: Any) -> Any:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied
