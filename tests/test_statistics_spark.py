"""Statistics by Spark: the same as those of this machine, from files, DataFrames and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_hops.launchers.spark import SparkLauncher

pytestmark = [pytest.mark.runtime, pytest.mark.spark]
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)


@pytest.fixture(scope="module")
def facts(shared_run_step: Any, runtime: Path, warm_launcher: Any) -> Any:
    return shared_run_step(
        "spark_statistics_checks:compare_engines",
        code_paths=CHECKS,
        launcher=SparkLauncher(runtime, "spark_local", warm=warm_launcher.warm),
    )


@pytest.mark.parametrize(
    "case", ["mixed", "nested", "weights", "slices", "slicing_config", "cross_features", "many_strings"]
)
def test_both_engines_return_the_same_statistics(facts: Any, case: str) -> None:
    assert facts["cases"][case] == []


def test_executors_read_what_the_local_engine_reads(facts: Any) -> None:
    formats = facts["formats"]
    assert formats["wide.csv"] == formats["small.csv.gz"] == formats["lines.jsonl"] == []
    assert formats["wide.csv types"] == ["n 0", "float_late 1", "text_late 2", "both 2"]
    assert formats["lines.jsonl types"] == ["x 0", "y 2", "z 0"]


@pytest.mark.parametrize("source", ["frame", "empty partitions", "table", "nested", "odd names"])
def test_a_dataframe_has_the_statistics_of_its_rows(facts: Any, source: str) -> None:
    assert facts["tables"][source] == []


def test_columns_of_a_dataframe_are_left_out(facts: Any) -> None:
    assert facts["tables"]["excluded"] == ["carrier", "delay", "weight"]


def test_a_sample_is_drawn_in_the_executors(facts: Any) -> None:
    # 1,400 of 7,000 rows are expected, with a standard deviation of 33.
    assert 1200 < facts["sample"] < 1600


def test_many_tasks_are_merged_as_a_tree(facts: Any) -> None:
    tree = facts["tree"]
    assert tree["tasks"] == [17, 3, 1]
    assert tree["differences"] == []
    assert tree["rows"] == 7000
    assert tree["shares"] == sorted(tree["shares"])
    assert tree["shares"][-1] == 1.0


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("corrupt", ["part-9.parquet", "cannot be read"]),
        ("damaged", ["part-1.parquet", "cannot be read"]),
        ("no table", ["spark://no_such_table", "cannot be found"]),
        ("timestamp", ["column 't' is timestamp[us", "has no statistics"]),
        ("two columns", ["two columns are called 'x'"]),
        ("no rows", ["no rows"]),
        ("no column", ["no column is left to read"]),
        ("batches", ["a stream of record batches"]),
        ("no file", ["nothing", "no file matches"]),
        ("slice function", ["BadInput: slices", "by_nothing", "KeyError('no such slice')"]),
    ],
)
def test_bad_input_is_named(facts: Any, case: str, words: list[str]) -> None:
    for word in words:
        assert word in facts["errors"][case], facts["errors"][case]


def test_a_file_that_proves_damaged_in_an_executor_is_left_out(facts: Any) -> None:
    assert facts["errors"]["skipped"] == "100000"
