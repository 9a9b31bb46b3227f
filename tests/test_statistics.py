"""The statistics stage: equal to TFDV's, and its artifact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import flights_examples
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.artifacts import Producer, RowCounts
from airflow_hops.hooks.runtime import StepFailed

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)
ENTRY = "airflow_hops.runtime.statistics:run"


CASES = [
    "mixed", "nested", "flights", "weights", "slices", "slicing_config", "slicing_sql", "weighted_slices", "buckets",
    "allowlist", "categorical", "bytes_feature", "weighted_feature", "semantic_domains", "cross_features",
    "no_defaults", "many_strings",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_statistics_equal_those_of_tfdvs_beam_pipeline(shared_run_step: Any, warm_launcher: Any, case: str) -> None:
    found = shared_run_step(
        "statistics_equality:differences", params={"name": case}, code_paths=CHECKS, launcher=warm_launcher
    )
    assert found["one"] == found["two"] == []
    assert found["features"] >= (2 if case in ("allowlist", "many_strings") else 3)
    assert (found["datasets"] > 2) == ("slic" in case)


def test_histograms_are_those_of_tfdv(shared_run_step: Any, warm_launcher: Any) -> None:
    found = shared_run_step("statistics_equality:histogram_differences", code_paths=CHECKS, launcher=warm_launcher)
    assert found["buckets"] > 1000
    assert found["other_bounds"] == 0
    assert found["worst"] < 1e-8


def test_awkward_sizes(shared_run_step: Any, warm_launcher: Any) -> None:
    found = shared_run_step("statistics_sizes:sizes", code_paths=CHECKS, launcher=warm_launcher)
    one = found["one_row"]["features"]
    assert (one["x"]["mean"], one["x"]["std"], one["s"]["top_values"], one["none"]["missing"]) == (
        1.5,
        0,
        [["a", 1]],
        1,
    )
    million = found["million_strings"]["features"]["s"]
    assert million["unique"] == pytest.approx(1_000_000, rel=0.03)
    assert [count for _, count in million["top_values"]] == [1] * 20
    megabytes = found["megabytes"]["features"]["s"]
    assert megabytes["top_values"] == [["__LARGE_BYTES__", 300]]
    assert (megabytes["unique"], megabytes["average_length"]) == (3, 1_000_001)
    assert found["megabytes"]["bytes"] < 150e6  # of 300 MB
    assert (found["columns"]["rows"], found["columns"]["count"]) == (50, 5000)


@pytest.fixture(scope="module")
def facts(shared_run_step: Any, warm_launcher: Any) -> Any:
    return shared_run_step("tfdv_checks:compare_with_tfdv", code_paths=CHECKS, launcher=warm_launcher)


def test_statistics_equal_those_of_a_dataframe(facts: Any) -> None:
    assert facts["dataframe"] == []


def test_rows_of_a_file_that_lacks_every_feature_are_counted(facts: Any) -> None:
    assert facts["lacking"] == {"rows": 5, "missing": 3}


def test_native_schema_and_validation_equal_tfdvs(facts: Any) -> None:
    assert facts["schema_as_tfdv"]
    assert facts["validation_as_tfdv"]


def test_artifact_holds_protos_a_json_twin_and_what_downstream_needs(
    flights_statistics: Any, shared_run_step: Any
) -> None:
    folder = shared_run_step.store.local(flights_statistics)
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*")) == [
        "eval/FeatureStats.pb",
        "eval/statistics.json",
        "manifest.json",
        "train/FeatureStats.pb",
        "train/statistics.json",
    ]
    assert flights_statistics.properties == {
        "splits": ["train", "eval"], "label": "late", "key": "flight_id", "time": "scheduled_at", "window": None,
    }  # fmt: skip
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
    run_step: Any, warm_launcher: Any, damage: Any, words: list[str]
) -> None:
    with run_step.store.create(run_step.store.uri("tests", "bad", "examples"), "examples", Producer()) as writer:
        (writer.path / "train").mkdir()
        damage(writer.path / "train")
        examples = writer.commit(properties={**flights_examples.PROPERTIES, "splits": ["train"]})
    with pytest.raises(StepFailed) as failure:
        run_step(ENTRY, inputs={"examples": examples}, kind="statistics", launcher=warm_launcher)
    for word in words:
        assert word in str(failure.value)
    assert not failure.value.retryable
    assert not run_step.store.exists(run_step.last_uri)


def test_rows_of_files_that_cannot_be_read_are_rejected_with_the_reason(run_step: Any, warm_launcher: Any) -> None:
    with run_step.store.create(run_step.store.uri("tests", "skip", "examples"), "examples", Producer()) as writer:
        (writer.path / "train").mkdir()
        _corrupt(writer.path / "train")
        properties = {**flights_examples.PROPERTIES, "splits": ["train"]}
        examples = writer.commit(rows={"train": RowCounts(5, 5)}, properties=properties)
    params = {"on_corrupt": "skip"}
    found = run_step(ENTRY, params=params, inputs={"examples": examples}, kind="statistics", launcher=warm_launcher)
    assert found.rows["train"] == RowCounts(5, 2, {"in a file that cannot be read": 3})
    assert [Path(name).name for name in found.properties["skipped_files"]["train"]] == ["part-1.parquet"]


def test_a_split_that_is_not_there_is_named(run_step: Any, warm_launcher: Any, store: Any) -> None:
    examples = flights_examples.write_examples(run_step.store, {"train": pa.table({"x": [1]})})
    with pytest.raises(StepFailed, match="there is no split 'newest'"):
        run_step(
            ENTRY,
            params={"splits": ["newest"]},
            inputs={"examples": examples},
            kind="statistics",
            launcher=warm_launcher,
        )
