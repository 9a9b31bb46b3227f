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
from statistics_equality import HAS_SQL, QUERY, by_beam, cases, compare, flights_like_table, mixed_table
from tensorflow_data_validation.utils.quantiles_util import generate_equi_width_histogram
from tfx_bsl.public.proto.slicing_spec_pb2 import SlicingConfig, SlicingSpec

from airflow_hops.core.contract.artifacts import Artifact, BadInput, Producer, RowCounts
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.schemas.validation import find_anomalies
from airflow_hops.ml.stages import statistics as feature_statistics
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.statistics.histograms import equi_width_histogram
from airflow_hops.ml.statistics.sample import load_sample
from airflow_hops.ml.statistics.summary import summarize
from tests import flights_examples

pytestmark = pytest.mark.runtime

CASES = [
    "mixed", "nested", "slices", "weighted_slices", "slicing_config", "buckets_of_some_features", "schema",
    "semantic_domains", "cross_features", "no_defaults", "many_strings", *(["slicing_sql"] if HAS_SQL else []),
]  # fmt: skip


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    result = by_beam()
    assert list(result) == CASES
    return result


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_statistics_match_tfdvs_beam_pipeline(expected: dict[str, Any], tmp_path: Path, case: str) -> None:
    make, options = cases()[case]
    table, theirs = make(), expected[case]
    third = table.num_rows // 3 + 1
    for part in range(3):
        rows = table.slice(part * third, third)
        pq.write_table(rows, tmp_path / f"part-{part}.parquet", row_group_size=400 + third // 3)
    assert compare(generate_statistics(tmp_path, options=options(), processes=1), theirs, table) == []
    assert len(theirs.datasets[0].features) >= (2 if case in ("buckets_of_some_features", "many_strings") else 3)
    assert (len(theirs.datasets) > 2) == ("slic" in case)


@pytest.mark.skipif(HAS_SQL, reason="this profile's TFDV runs queries")
def test_queries_for_slices_are_refused_by_name() -> None:
    config = SlicingConfig(slicing_specs=[SlicingSpec(slice_keys_sql=QUERY)])
    with pytest.raises(BadInput, match=r"slices: the query 'SELECT .*': only the profile 'base' has SQL"):
        generate_statistics(flights_like_table(), options=tfdv.StatsOptions(slicing_config=config))


def test_histograms_match_tfdv() -> None:
    random = np.random.default_rng(7)
    compared = 0
    for kind in range(200):
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
    assert compared > 1000


def test_one_row_many_strings_and_many_columns_are_counted() -> None:
    one = summarize(generate_statistics(pa.table({"x": [1.5], "s": ["a"], "none": pa.nulls(1)})))["features"]
    assert (one["x"]["mean"], one["x"]["std"], one["s"]["top_values"], one["none"]["missing"]) == (
        1.5, 0, [["a", 1]], 1,
    )  # fmt: skip
    strings = pa.table({"s": pa.array(np.arange(200_000).astype(str))})
    many = summarize(generate_statistics(strings))["features"]["s"]
    assert many["unique"] == 200_000
    assert [count for _, count in many["top_values"]] == [1] * 20
    columns = summarize(generate_statistics(pa.table({f"c{i}": np.arange(50) + i for i in range(1000)})))
    assert (columns["rows"], len(columns["features"])) == (50, 1000)


def test_large_strings_are_streamed(own_process: Callable[..., Any], tmp_path: Path) -> None:
    row, path = "é" * 500_000, tmp_path / "megabytes.parquet"
    table = pa.table({"s": pa.array([f"{i % 3}{row}" for i in range(300)], pa.large_string()), "i": range(300)})
    pq.write_table(table, path, use_dictionary=False, compression="zstd")
    summary, taken_bytes = own_process(_summary_and_memory, path)
    megabytes = summary["features"]["s"]
    assert megabytes["top_values"] == [["__LARGE_BYTES__", 300]]
    assert (megabytes["unique"], megabytes["average_length"]) == (3, 1_000_001)
    assert taken_bytes < 150e6  # of 300 MB


def _summary_and_memory(path: Path) -> tuple[Any, int]:
    """The statistics of a file, and by how much they raised the peak of this process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    summary = summarize(generate_statistics(path))
    return summary, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def test_anomalies_equal_tfdvs() -> None:
    table = mixed_table()
    result, other = generate_statistics(table), generate_statistics(table.slice(0, 500).drop(["text"]))
    schema = tfdv.infer_schema(result)
    ours = find_anomalies(other, schema, previous=result)
    assert ours == tfdv.validate_statistics(other, schema, previous_statistics=result)
    assert ours.anomaly_info


def test_artifact_has_protos_and_equal_json(flights_statistics: Artifact, shared_store: ArtifactStore) -> None:
    folder = shared_store.local(flights_statistics)
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*")) == [
        "eval/FeatureStats.pb",
        "eval/page.jsonl",
        "eval/page_rows.bin",
        "eval/sample.parquet",
        "eval/statistics.json",
        "manifest.json",
        "train/FeatureStats.pb",
        "train/page.jsonl",
        "train/page_rows.bin",
        "train/sample.parquet",
        "train/statistics.json",
    ]
    assert flights_statistics.properties == {
        "splits": ["train", "eval"], "label": "late", "key": "flight_id", "time": "scheduled_at", "window": None,
    }  # fmt: skip
    sample = load_sample(folder / "train")
    assert sample is not None
    assert sample.num_rows == flights_statistics.rows["train"].rows_out
    assert set(sample.column_names) == {"late", "scheduled_at", *flights_examples.FEATURES}
    twin = json.loads((folder / "train" / "statistics.json").read_text())
    assert twin["rows"] == flights_statistics.rows["train"].rows_out > 15_000
    assert set(twin["features"]) == {"late", "scheduled_at", *flights_examples.FEATURES}
    temp = twin["features"]["temp"]
    assert temp["type"] == "FLOAT"
    assert temp["count"] + temp["missing"] == twin["rows"]
    assert temp["min"] == temp["quantiles"][0] < temp["median"] < temp["quantiles"][-1] == temp["max"]
    assert len(temp["quantiles"]) == 11
    assert sum(count for _, _, count in temp["histogram"]) == pytest.approx(temp["count"])
    assert twin["features"]["origin"]["unique"] == 3
    assert {value for value, _ in twin["features"]["origin"]["top_values"]} == {"EWR", "JFK", "LGA"}
    assert twin["features"]["plane_manufacturer"]["missing"] > 0
    assert len((folder / "train" / "statistics.json").read_bytes()) < 50_000


def _corrupt(folder: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), folder / "part-0.parquet")
    (folder / "part-1.parquet").write_bytes(b"PAR1 this is not Parquet PAR1")


def _other_type(folder: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), folder / "part-0.parquet")
    pq.write_table(pa.table({"x": ["a"]}), folder / "part-1.parquet")


def _timestamp(folder: Path) -> None:
    pq.write_table(pa.table({"when": pa.array([0], pa.timestamp("us"))}), folder / "part-0.parquet")


def _no_rows(folder: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), folder / "part-0.parquet")


def _damaged_page(folder: Path) -> None:
    path = folder / "part-0.parquet"
    pq.write_table(pa.table({"x": list(range(100_000))}), path, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[10_000:60_000] = bytes(50_000)
    path.write_bytes(content)


def _damaged(store: ArtifactStore, damage: Callable[[Path], None], **committed: Any) -> Artifact:
    """Examples of one split, ``train``, whose folder something has been done to."""
    with store.create(store.uri("tests", "bad", "examples"), "examples", Producer()) as writer:
        (writer.path / "train").mkdir()
        damage(writer.path / "train")
        return writer.commit(**committed, properties={**flights_examples.PROPERTIES, "splits": ["train"]})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_corrupt, ["part-1.parquet: cannot be read", "damaged"]),
        (_damaged_page, ["part-0.parquet: cannot be read", "damaged"]),
        (_other_type, ["part-1.parquet: column 'x' is string, but int64 in", "expected one type"]),
        (_timestamp, ["part-0.parquet", "column 'when' is timestamp[us], which has no statistics; expected integers"]),
        (_no_rows, ["train: no rows"]),
        (lambda folder: None, ["there is no split 'train'"]),
    ],
)
def test_bad_examples_give_a_clear_error_and_no_artifact(
    run_stage: Callable[..., Any], store: ArtifactStore, damage: Callable[[Path], None], words: list[str]
) -> None:
    with pytest.raises(BadInput) as failure:
        run_stage(feature_statistics.run, kind="statistics", inputs={"examples": _damaged(store, damage)}, run_id="bad")
    for word in words:
        assert word in str(failure.value)
    assert not store.exists(store.address(Producer("tests", "bad", "statistics"), "statistics"))


def test_rows_of_unreadable_files_are_rejected_with_the_reason(
    run_stage: Callable[..., Any], store: ArtifactStore
) -> None:
    examples = _damaged(store, _corrupt, rows={"train": RowCounts(5, 5)})
    result = run_stage(feature_statistics.run, kind="statistics", inputs={"examples": examples}, on_corrupt="skip")
    assert result.rows["train"] == RowCounts(5, 2, {"in a file that cannot be read": 3})
    assert [Path(name).name for name in result.properties["skipped_files"]["train"]] == ["part-1.parquet"]


def test_missing_split_is_named(run_stage: Callable[..., Any], store: ArtifactStore) -> None:
    examples = flights_examples.write_examples(store, {"train": pa.table({"x": [1]})})
    with pytest.raises(BadInput, match="there is no split 'newest'"):
        run_stage(feature_statistics.run, kind="statistics", inputs={"examples": examples}, splits=["newest"])
