"""Statistics of awkward columns and files, and of processes and threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)


@pytest.fixture(scope="module")
def check(shared_run_step: Any, warm_launcher: Any) -> Any:
    return lambda name: shared_run_step(f"statistics_awkward:{name}", code_paths=CHECKS, launcher=warm_launcher)


def test_rows_that_lack_every_feature_are_counted_in_every_format(check: Any) -> None:
    found = check("rows_without_features")
    assert found.keys() == {"parquet", "csv", "jsonl", "arrow", "tfrecord"}
    assert set(map(tuple, found.values())) == {(303, 300)}


def test_top_values_are_exact_of_a_feature_that_the_first_examples_lack(check: Any) -> None:
    assert check("late_examples") == {"top": [["hot-0", 3750], ["hot-4", 3750]]}


def test_types_of_fixed_size_and_missing_structs_are_as_tfdv_has_them(check: Any) -> None:
    assert check("types_as_tfdv") == {"code": [], "half": [], "pair": [], "struct": []}


def test_lists_that_are_all_missing_are_sliced_and_columns_without_rows_are_known(check: Any) -> None:
    found = check("empty_lists")
    assert len(found) == 5
    for features, slices in found.values():
        assert features == ["g", "ghost", "x"]
        assert slices == [30_000, 30_000]


def test_rows_are_known_whatever_the_generators(check: Any) -> None:
    assert check("rows_without_default_generators") == [70_000, 70_000]


def test_what_waits_in_many_slices_is_bounded(check: Any) -> None:
    found = check("many_slices")
    assert 0 < max(found["waiting"]) <= 110_000
    assert found["rows"] == [200, 40_000]
    assert found["mean"] == 199 / 2 * 200


def test_threads_each_get_statistics_of_their_own_source(check: Any) -> None:
    assert check("threads") == [[f"x{number}", 200_000 + number] for number in range(4)]


def test_no_process_outlives_a_death_an_interrupt_or_an_error(check: Any) -> None:
    found = check("ends")
    assert found["killed"][0] == "HopsError"
    assert "was killed; if memory was short, use fewer workers" in found["killed"][1]
    assert found["interrupting"][0] == "KeyboardInterrupt"
    assert found["raising"][0] == "BadInput"
    assert "no slices today" in found["raising"][1]
    assert [left for _, _, left in found.values()] == [0, 0, 0]


def test_what_a_notebook_may_get_wrong_is_refused(check: Any) -> None:
    found = check("refused")
    for source in ("table", "batches", "parquet", "arrow"):
        assert "two columns are called 'x'" in found[source]
    assert "pyarrow.Table.from_pandas(frame)" in found["frame"]
    assert "options is a dict, expected tfdv.StatsOptions" in found["mapping"]
    assert "feature_allowlist" in found["paths"]
    assert found["exclude"] == "exclude is 'x', expected a list of columns"
    assert "workers is '2'" in found["workers"]
    assert "none of 1 rows is in a sample" in found["sample"]


def test_options_and_tfdv_are_left_as_they_were(check: Any) -> None:
    assert check("options_before_and_after") == {"options": True, "tfdv": True, "same": True}
