"""The statistics stage: equal to TFDV's, and its artifact."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_data_validation as tfdv
from statistics_equality import CASES, HAS_SQL, QUERY, by_beam, cases, compare, flights_like_table, in_memory
from tensorflow_data_validation.utils.quantiles_util import generate_equi_width_histogram
from tfx_bsl.public.proto.slicing_spec_pb2 import SlicingConfig, SlicingSpec

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.statistics import stage as feature_statistics
from airflow_hops.ml.statistics.histograms import equi_width_histogram
from airflow_hops.ml.statistics.sample import load_sample
from airflow_hops.ml.statistics.summary import summarize
from tests import flights_examples
from tests.ml.world import Flights, World


def check_equal(folder: Path, case: str, theirs: Any) -> None:
    make, options = cases()[case]
    table, third = make(), make().num_rows // 3 + 1
    for part in range(3):
        rows = table.slice(part * third, third)
        pq.write_table(rows, folder / f"part-{part}.parquet", row_group_size=400 + third // 3)
    assert compare(generate_statistics(folder, options=options(), processes=1), theirs, table) == [], case
    assert len(theirs.datasets[0].features) >= (2 if case in ("buckets_of_some_features", "many_strings") else 3)
    assert (len(theirs.datasets) > 2) == ("slic" in case)


# In memory, TFDV orders ties otherwise, of which many strings have many.
@pytest.mark.parametrize("case", [case for case in CASES if case != "many_strings"])
def test_statistics_match_those_of_tfdv(tmp_path: Path, case: str) -> None:
    make, options = cases()[case]
    check_equal(tmp_path, case, in_memory(make(), options()))


@pytest.mark.scheduled(part="tfx")
def test_statistics_match_tfdvs_beam_pipeline(tmp_path: Path) -> None:
    for case, theirs in by_beam().items():
        check_equal(tmp_path, case, theirs)


@pytest.mark.skipif(HAS_SQL, reason="this profile's TFDV runs queries")
def test_queries_for_slices_are_refused_by_name() -> None:
    config = SlicingConfig(slicing_specs=[SlicingSpec(slice_keys_sql=QUERY)])
    with pytest.raises(BadInput, match=r"slices: the query 'SELECT .*': only the profile 'base' has SQL"):
        generate_statistics(flights_like_table(), options=tfdv.StatsOptions(slicing_config=config))


def test_histograms_match_tfdv() -> None:
    random = np.random.default_rng(7)
    compared = 0
    for kind in range(105):
        size = int(random.integers(2, 1000))
        draws = [random.normal(size=size), random.integers(0, 5, size), np.maximum(random.normal(size=size), 0)]
        quantiles = np.sort(draws[kind % 3].astype(float))
        counts, low, high, infinite = np.cumsum(random.random(size) * 10), quantiles[0], quantiles[-1], 0.0
        if kind % 5 == 0:
            quantiles, counts = np.append(-np.inf, quantiles), np.append(3.0, counts + 3)
        if kind % 7 == 0:
            quantiles, counts, infinite = np.append(quantiles, np.inf), np.append(counts, counts[-1] + 4), 2.0
        arguments = (quantiles, counts, low, high, int(random.integers(1, 20)), infinite)
        for ours, theirs in zip(
            equi_width_histogram(*arguments).buckets, generate_equi_width_histogram(*arguments).buckets, strict=True
        ):
            compared += 1
            assert (ours.low_value, ours.high_value) == (theirs.low_value, theirs.high_value)
            # In values of thousands.
            assert ours.sample_count == pytest.approx(theirs.sample_count, abs=1e-8)
    assert compared > 600


def test_one_row_and_many_strings_are_counted() -> None:
    one = summarize(generate_statistics(pa.table({"x": [1.5], "s": ["a"], "none": pa.nulls(1)})))["features"]
    assert (one["x"]["mean"], one["x"]["std"], one["s"]["top_values"], one["none"]["missing"]) == (
        1.5, 0, [["a", 1]], 1,
    )  # fmt: skip
    strings = pa.table({"s": pa.array(np.arange(100_000).astype(str))})
    many = summarize(generate_statistics(strings))["features"]["s"]
    assert many["unique"] == 100_000
    assert [count for _, count in many["top_values"]] == [1] * 20


@pytest.mark.slow
def test_large_strings_are_streamed(own_process: Callable[..., Any], tmp_path: Path) -> None:
    row, path = "é" * 500_000, tmp_path / "megabytes.parquet"
    table = pa.table({"s": pa.array([f"{i % 3}{row}" for i in range(200)], pa.large_string()), "i": range(200)})
    pq.write_table(table, path, use_dictionary=False, compression="zstd")
    summary, taken_bytes = own_process(_summary_and_memory, path)
    megabytes = summary["features"]["s"]
    assert megabytes["top_values"] == [["__LARGE_BYTES__", 200]]
    assert (megabytes["unique"], megabytes["average_length"]) == (3, 1_000_001)
    assert taken_bytes < 150e6  # of 200 MB


def _summary_and_memory(path: Path) -> tuple[Any, int]:
    """The statistics of a file, and by how much they raised the peak of this process."""
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    summary = summarize(generate_statistics(path))
    return summary, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start)


def test_artifact_has_protos_and_equal_json(flights: Flights) -> None:
    statistics = flights.statistics
    folder = flights.store.local(statistics)
    files = ("FeatureStats.pb", "page.jsonl", "page_rows.bin", "sample.parquet", "statistics.json")
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")} == {
        "manifest.json", *(f"{split}/{file}" for split in ("train", "eval") for file in files),
    }  # fmt: skip
    assert statistics.properties == {
        "splits": ["train", "eval"], "label": "late", "key": "flight_id", "time": "scheduled_at", "window": None,
    }  # fmt: skip
    names = {"late", "scheduled_at", *flights_examples.FEATURES}
    sample = load_sample(folder / "train")
    assert sample is not None
    assert (sample.num_rows, {*sample.column_names}) == (statistics.rows["train"].rows_out, names)
    twin = json.loads((folder / "train" / "statistics.json").read_text())
    assert twin["rows"] == statistics.rows["train"].rows_out > 15_000
    assert set(twin["features"]) == names
    temp, origin = twin["features"]["temp"], twin["features"]["origin"]
    assert temp["type"] == "FLOAT"
    assert temp["count"] + temp["missing"] == twin["rows"]
    assert temp["min"] == temp["quantiles"][0] < temp["median"] < temp["quantiles"][-1] == temp["max"]
    assert len(temp["quantiles"]) == 11
    assert sum(count for _, _, count in temp["histogram"]) == pytest.approx(temp["count"])
    assert (origin["unique"], {value for value, _ in origin["top_values"]}) == (3, {"EWR", "JFK", "LGA"})
    assert twin["features"]["plane_manufacturer"]["missing"] > 0
    assert len((folder / "train" / "statistics.json").read_bytes()) < 50_000


def _corrupt(folder: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), folder / "part-0.parquet")
    (folder / "part-1.parquet").write_bytes(b"PAR1 this is not Parquet PAR1")


def _no_rows(folder: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), folder / "part-0.parquet")


@pytest.mark.parametrize(
    ("damage", "params", "words"),
    [
        (_corrupt, {}, r"part-1\.parquet: cannot be read.*damaged"),
        (_no_rows, {}, "train: no rows"),
        (lambda folder: None, {}, "there is no split 'train'"),
        (_no_rows, {"splits": ["newest"]}, "there is no split 'newest'"),
    ],
)
def test_bad_examples_are_named(world: World, damage: Any, params: dict[str, Any], words: str) -> None:
    def write(folder: Path) -> None:
        (folder / "train").mkdir()
        damage(folder / "train")

    examples = world.artifact("examples", write, label="late", splits=["train"])
    with pytest.raises(BadInput, match=words):
        world.run(feature_statistics, examples=examples, **params)
