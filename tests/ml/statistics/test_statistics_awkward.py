"""Statistics of awkward columns and files, of several threads at once, and of processes that end before their time."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow_data_validation as tfdv
from google.protobuf import text_format
from statistics_equality import compare
from tensorflow_data_validation.statistics import stats_impl
from tensorflow_data_validation.utils import quantiles_util
from tensorflow_metadata.proto.v0 import schema_pb2
from written_tables import write

from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.ending import descendants
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.statistics import combiners, generate_statistics
from airflow_hops.ml.statistics.generate import collect_statistics
from airflow_hops.ml.statistics.row_keys import keys_of


def test_rows_that_lack_every_feature_are_counted_in_every_format(tmp_path: Path) -> None:
    for format_, processes in {"parquet": 2, "csv": 1, "jsonl": 1}.items():
        folder = tmp_path / format_
        folder.mkdir()
        write(pa.table({"x": [1, 2], "id": [1, 2]}), folder / f"a.{format_}")
        write(pa.table({"id": range(300)}), folder / f"b.{format_}")
        write(pa.table({"x": [7], "id": [1]}), folder / f"c.{format_}")
        dataset = generate_statistics(folder, exclude=["id"], processes=processes).datasets[0]
        (feature,) = dataset.features
        assert (dataset.num_examples, feature.num_stats.common_stats.num_missing) == (303, 300), format_


def test_fixed_size_types_and_missing_structs_match_tfdv(small_parts: None) -> None:
    rows = 450  # so that the last are a slice of their own
    codes = [b"%04d" % (i % 20) if i % 3 else None for i in range(rows)]
    halves = [np.float16(i % 7) if i % 5 else None for i in range(rows)]
    structs = [{"x": i % 5, "code": b"abcd"} if i % 2 == 0 else None for i in range(rows)]
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
    for name, (values, as_tfdv_wants) in cases.items():
        batch = pa.RecordBatch.from_arrays([as_tfdv_wants], [name])
        theirs = stats_impl.generate_statistics_in_memory(batch, tfdv.StatsOptions())
        assert compare(generate_statistics(pa.table({name: values})), theirs, pa.table({})) == []


def test_missing_lists_are_sliced_and_empty_columns_counted(tmp_path: Path, small_parts: None) -> None:
    by_group = tfdv.experimental_get_feature_value_slicer({"g": None})
    options = tfdv.StatsOptions(experimental_slice_functions=[by_group])
    rows = 600
    kinds = [pa.int64(), pa.list_(pa.float32()), pa.bool_(), pa.string(), pa.struct([("a", pa.int64())])]
    missing = {f"x{n}": pa.nulls(rows, pa.list_(kind)) for n, kind in enumerate(kinds)}
    write(pa.table({**missing, "g": [f"g{i % 2}" for i in range(rows)]}), tmp_path / "a.parquet")
    empty = {f"ghost{n}": pa.array([], pa.list_(kind)) for n, kind in enumerate(kinds)}
    write(pa.table(empty), tmp_path / "b.parquet")
    whole, *slices = generate_statistics(tmp_path, options=options).datasets
    assert {feature.path.step[0] for feature in whole.features} == {"g", *missing, *empty}
    assert [dataset.num_examples for dataset in slices] == [300, 300]


def test_row_count_does_not_depend_on_generators(small_parts: None) -> None:
    options = tfdv.StatsOptions(add_default_generators=False, enable_semantic_domain_stats=True)
    statistics = collect_statistics(pa.table({"x": ["a"] * 700}), options=options, processes=2)
    assert (statistics.rows, statistics.sampled) == (700, 700)


def test_buffers_of_many_slices_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combiners, "_WAITING_BYTES", 100_000)
    rows, slices = 20_000, 100
    table = pa.table({"g": [f"g{i % slices}" for i in range(rows)], "x": np.arange(rows, dtype=float)})
    options = tfdv.StatsOptions(experimental_slice_functions=[tfdv.experimental_get_feature_value_slicer({"g": None})])
    combined = combiners.Combiners(options)
    accumulator, waiting = combiners.Accumulator(), []
    for batch in table.to_batches(max_chunksize=2000):
        combined.add(accumulator, batch, keys_of(0, 0, batch.num_rows))
        waiting.append(sum(part.size for part in accumulator.slices.values()))
    result = combined.extract(accumulator)
    assert 0 < max(waiting) <= 110_000
    assert {dataset.num_examples for dataset in result.datasets} == {200, 20_000}
    assert result.datasets[1].features[1].num_stats.mean == 199 / 2 * 100


@pytest.mark.slow
def test_threads_each_get_statistics_of_their_own_source(own_process: Callable[..., Any]) -> None:
    assert own_process(_by_threads) == [(f"x{number}", 70_000 + number) for number in range(3)]


def _by_threads() -> list[tuple[str, int]]:
    results: dict[int, tuple[str, int]] = {}

    def work(number: int) -> None:
        table = pa.table({f"x{number}": np.arange(70_000 + number)})
        dataset = generate_statistics(table, processes=2).datasets[0]
        results[number] = dataset.features[0].path.step[0], int(dataset.num_examples)

    running = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return [results[number] for number in sorted(results)]


@pytest.mark.parametrize(
    ("end", "raised", "words"),
    [
        ("killed", "HopsError", "was killed; if memory was short, use fewer processes"),
        ("interrupting", "KeyboardInterrupt", ""),
        ("raising", "BadInput", "no slices today"),
    ],
)
def test_no_process_is_left_after_death_interrupt_or_error(
    own_process: Callable[..., Any], end: str, raised: str, words: str
) -> None:
    name, message, left = own_process(_end, end)
    assert name == raised
    assert words in message
    assert left == 0


def _end(how: str) -> tuple[str, str, int]:
    """Returns the outcome of a process that is killed, raises or is interrupted, and the number of processes left."""
    parent = os.getpid()
    processes = set(descendants(parent))

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

    signal.signal(signal.SIGINT, interrupted)
    function = {"killed": killed, "interrupting": interrupting, "raising": raising}[how]
    options = tfdv.StatsOptions(experimental_slice_functions=[function])
    try:
        generate_statistics(pa.table({"x": np.arange(70_000)}), options=options, processes=2)
    except BaseException as error:
        return type(error).__name__, str(error), len(set(descendants(parent)) - processes)
    raise AssertionError("nothing was raised")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array(["a"])], ["x", "x"])
    file = write(twice, tmp_path / "twice.parquet")
    for source in (twice, twice.to_batches(), file):
        with pytest.raises(BadInput, match="two columns are called 'x'"):
            generate_statistics(source)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"source": pd.DataFrame({"x": [1]})}, "pyarrow.Table.from_pandas(frame)"),
        ({"options": {"slice_by": ["x"]}}, "options is a dict, expected tfdv.StatsOptions"),
        ({"options": tfdv.StatsOptions(feature_allowlist=[tfdv.FeaturePath(["x"])])}, "feature_allowlist"),
        ({"exclude": "x"}, "exclude is 'x', expected a list of columns"),
        ({"processes": "2"}, "processes is '2'"),
        ({"options": tfdv.StatsOptions(sample_rate=1e-12)}, "none of 1 rows is in a sample"),
        ({"options": tfdv.StatsOptions(label_feature="x")}, "label_feature is for lift"),
        ({"options": tfdv.StatsOptions(epsilon=1e-4)}, "epsilon is 0.0001, expected at least 0.002"),
        (
            {"options": tfdv.StatsOptions(enable_semantic_domain_stats=True, semantic_domain_stats_sample_rate=0.1)},
            "semantic_domain_stats_sample_rate draws at random",
        ),
    ],
)
def test_notebook_mistakes_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as refused:
        generate_statistics(**{"source": pa.table({"x": [1]}), **given})
    assert words in str(refused.value)


def test_options_and_tfdv_are_unchanged() -> None:
    histogram = quantiles_util.generate_equi_width_histogram
    text = "feature { name: 'late' type: INT int_domain { is_categorical: true } } feature { name: 'x' type: BYTES }"
    schema = text_format.Parse(text, schema_pb2.Schema())
    generators: list[Any] = []
    options = tfdv.StatsOptions(schema=schema, weight_feature="w", generators=generators)
    table = pa.table({"x": ["a", "b"] * 50, "late": [0, 1] * 50, "w": [1.0, 2.0] * 50})
    original = dict(vars(options)), schema.SerializeToString(deterministic=True)
    first = generate_statistics(table, options=options)
    assert generate_statistics(table, options=options) == first
    assert original == (dict(vars(options)), schema.SerializeToString(deterministic=True))
    assert not generators
    assert quantiles_util.generate_equi_width_histogram is histogram


@pytest.mark.parametrize("values", [[1e300, -1e300, 5e299], [1e200, 2e200], [1.7e308, -1.7e308], [1e-170, 2e-170]])
def test_deviation_beyond_float64_is_unknown_not_zero(values: list[float]) -> None:
    statistics = generate_statistics(pa.table({"x": values, "same": [values[0]] * len(values)}))
    x, same = statistics.datasets[0].features
    assert (math.isnan(x.num_stats.std_dev), same.num_stats.std_dev) == (True, 0.0)
    with pytest.raises(BadInput, match=r"std_dev\('x'\): float64 does not hold the variance of values from"):
        Constants(statistics.datasets[0], "here").std_dev("x")
