"""Rows that break the schema: the same as TFDV finds one by one, and none of them among the good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)


@pytest.fixture(scope="module")
def check(shared_run_step: Any, warm_launcher: Any) -> Any:
    """Runs a function of ``validation_checks``."""

    def run(name: str) -> Any:
        return shared_run_step(f"validation_checks:{name}", code_paths=CHECKS, launcher=warm_launcher)

    return run


def test_a_row_is_anomalous_for_the_reasons_that_tfdv_gives(check: Any) -> None:
    facts = check("single_rows")
    assert len(facts) == 32
    assert sum(bool(kinds) for fact in facts.values() for kinds in fact["tfdv"]) > 50
    for name, fact in facts.items():
        for value, ours, theirs in zip(fact["values"], fact["ours"], fact["tfdv"], strict=True):
            # A column of another environment is one that the schema does not know.
            assert ours == [kind for kind in theirs if kind != "SCHEMA_NEW_COLUMN"], f"{name}: {value}"


@pytest.fixture(scope="module")
def split(check: Any) -> Any:
    return check("split_of_a_table")


def test_rows_are_conserved_and_keep_their_columns(split: Any) -> None:
    rows, good, rejected = split["rows"]
    assert rows == 4000
    assert good + sum(rejected.values()) == rows
    assert 2800 < good < 3600
    assert split["keys"]
    assert split["columns"] == [True, True]


def test_good_rows_validate_clean_and_all_rows_do_not(split: Any) -> None:
    assert set(split["before"]) == {"count", "share", "city", "tags"}
    assert split["after"] == {}
    # What TFDV says of all rows together is what is said of the quarantined ones, feature by feature.
    assert {name: sorted(kinds) for name, kinds in split["by_feature"].items()} == split["before"]


def test_every_quarantined_row_says_why(split: Any) -> None:
    reasons = split["reasons"].values()
    assert all(reasons)
    told = {reason for row in reasons for reason in row}
    assert "city: ENUM_TYPE_UNEXPECTED_STRING_VALUES: 'somewhere else', not in the domain" in told
    assert "count: INT_TYPE_SMALL_INT: -1, expected at least 0" in told
    assert "count: FEATURE_TYPE_LOW_FRACTION_PRESENT: missing, and required" in told
    assert "share: FLOAT_TYPE_BIG_FLOAT: 1.5, expected at most 1" in told
    assert "tags: FEATURE_TYPE_HIGH_NUMBER_VALUES: 4 values, expected at most 3" in told
    assert any(len(row) > 1 for row in reasons)


def test_tfdvs_beam_transform_finds_the_same_rows_but_for_missing_values(split: Any) -> None:
    assert len(split["few_by_tfdv"]) > 10
    assert split["few_missing"]
    assert split["few_quarantined"] == sorted({*split["few_by_tfdv"], *split["few_missing"]})


def test_sources_that_cannot_be_split_are_named_and_nothing_is_written_or_lost(check: Any) -> None:
    messages = check("refused_sources")
    assert "part-00000.parquet: to be read, and its folder is to be written to" in messages["onto_itself"]
    assert "the folder for good rows is that for quarantined ones, too" in messages["one_folder"]
    assert "'a.parquet' is in there; expected a folder of its own" in messages["others_files"]
    assert "b.parquet" in messages["corrupt"]
    assert "nowhere" in messages["nothing"]
    assert "there is a column 'anomaly_reasons' already" in messages["taken"]
    assert messages["environment"] == ("environment 'PRODUCTION' is not in the schema; there are TRAINING, SERVING")


def test_awkward_sources_are_split(check: Any) -> None:
    facts = check("other_shapes")
    assert facts["no_rows"] == {"good": 0, "reasons": [], "columns": ["x"]}
    missing = ["x: SCHEMA_MISSING_COLUMN: there is no such column"]
    assert facts["no_column"] == {"good": 0, "reasons": [missing, missing], "columns": ["y"]}
    assert facts["other_type"]["good"] == 1
    assert facts["other_type"]["reasons"] == [["x: UNEXPECTED_DATA_TYPE: BYTES, expected INT"]]
    assert facts["unsigned"]["good"] == 2
    assert facts["unsigned"]["reasons"] == [["x: INT_TYPE_BIG_INT: 18446744073709551615, expected at most 1"]]
    assert facts["of_one_size"]["good"] == 1
    assert facts["late_column"]["good"] == 3000
    assert facts["late_column"]["columns"] == ["x", "late"]
    for name in ("dictionary", "narrow", "sliced"):
        assert facts[name]["good"] == 2, name
        assert facts[name]["reasons"] == [["x: INT_TYPE_BIG_INT: 2, expected at most 1"]], name
