"""Row-level skew: what TFDV's feature-skew detector finds, from Arrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rounded": {"float_rounding": 2, "confusion": ["text", "bytes", "gone"]},
    "duplicates": {"allow_duplicate_identifiers": True},
}


@pytest.fixture(scope="module")
def check(shared_run_step: Any, warm_launcher: Any) -> Any:
    """Runs a check in the runtime environment."""

    def run(name: str, **params: Any) -> Any:
        return shared_run_step(f"skew_row_checks:{name}", params=params, code_paths=CHECKS, launcher=warm_launcher)

    return run


@pytest.fixture(scope="module")
def answers(check: Any) -> dict[str, Any]:
    """What this package and TFDV say of the same rows, under each of the options."""
    return {name: check("compare_with_tfdv", **options) for name, options in OPTIONS.items()}


@pytest.fixture(params=OPTIONS)
def compared(answers: dict[str, Any], request: pytest.FixtureRequest) -> Any:
    return answers[request.param]


def test_every_count_of_every_feature_is_tfdvs(compared: Any) -> None:
    ours, theirs = compared["ours"]["features"], {f["feature_name"]: f for f in compared["tfdv"]["skew_results"]}
    assert set(ours) == set(theirs) == {
        "float", "double", "integer", "text", "bytes", "integers", "floats", "texts", "flag", "same", "gone", "never",
        "other_type", "label",
    }  # fmt: skip
    for name, expected in theirs.items():
        for field, count in expected.items():
            if field != "feature_name":
                assert ours[name][field] == int(count), f"{name}.{field}"
    assert {name for name, skew in ours.items() if 0 < skew["mismatch_count"] < skew["match_count"]} >= {
        "float", "double", "integer", "text", "bytes", "integers", "floats", "texts", "flag",
    }  # fmt: skip


def test_the_join_counts_what_tfdv_counts(compared: Any) -> None:
    (expected,) = compared["tfdv"]["match_stats"]
    assert compared["ours"]["matches"] == {name: int(count) for name, count in expected.items()}
    assert min(compared["ours"]["matches"].values()) > 0
    assert compared["ours"]["skewed_pairs"] == compared["tfdv"]["pairs"]


def test_values_that_met_are_counted_as_tfdv_does(compared: Any) -> None:
    import base64

    expected: dict[str, set[tuple[Any, ...]]] = {}
    for met in compared["tfdv"].get("confusion_pairs", []):
        pair = [
            base64.b64decode(met[side]["bytes_value"]).decode(errors="backslashreplace") for side in ("base", "test")
        ]
        expected.setdefault(met["feature_name"], set()).add((*pair, int(met["count"])))
    found = {name: {tuple(row) for row in rows} for name, rows in compared["ours"]["confusion"].items()}
    assert found == expected


def test_rounding_makes_values_equal_that_were_not(answers: dict[str, Any]) -> None:
    plain, rounded = (answers[name]["ours"]["features"] for name in ("plain", "rounded"))
    assert rounded["double"]["match_count"] > plain["double"]["match_count"]
    assert rounded["integer"]["match_count"] == plain["integer"]["match_count"]


def test_the_most_skewed_feature_comes_first_with_examples_of_it(compared: Any) -> None:
    ours = compared["ours"]
    counts = [skew["diff_count"] for skew in ours["features"].values()]
    assert counts == sorted(counts, reverse=True)
    assert ours["skewed"] == [name for name, skew in ours["features"].items() if skew["diff_count"]]
    for name, skew in ours["features"].items():
        assert len(skew["examples"]) == min(10, skew["diff_count"]), name
        for example in skew["examples"]:
            assert set(example["identifier"]) == {"name", "day"}
            if skew["types"][0] == skew["types"][1] and name not in ("float", "double"):  # 0.0 == -0.0
                assert example["training"] != example["serving"], name
    assert ours["features"]["other_type"]["types"] == ["INT", "FLOAT"]
    assert ours["features"]["gone"]["examples"][0]["training"] == "here"
    assert ours["features"]["gone"]["examples"][0]["serving"] is None


def test_tables_files_and_streams_give_the_same(check: Any) -> None:
    first, *others = check("same_from_every_source")
    assert first["pairs"] > 50
    assert first["skewed"]
    for other in others:
        assert other == first


def test_pairs_of_one_identifier_come_in_pieces_and_examples_are_drawn_evenly(check: Any) -> None:
    found = check("memory_and_order")
    assert found["whole"] == found["parts"]
    assert (found["whole"]["pairs"], found["whole"]["differ"]) == (1_000_000, 999_000)
    assert found["whole"]["duplicate_id_count"] == 1
    assert len(set(found["drawn"])) == 100
    assert min(found["drawn"]) < 1000 and max(found["drawn"]) > 9000
    first = found["first"]
    assert first["serving"] == first["training"] + 1 == first["identifier"]["id"] + 1
    assert (found["none"]["pairs"], found["none"]["matches"]["test_with_id_count"]) == (0, 0)
    assert found["strangers"]["matches"]["ids_missing_in_base_count"] == 9990
    assert (found["strangers"]["pairs"], found["strangers"]["skewed"]) == (0, [])


def test_what_cannot_be_joined_is_named(check: Any) -> None:
    found = check("errors")
    assert "identifiers is [], expected a list with at least one name" in found["none"]
    assert "identifiers is 'name', expected a list" in found["text"]
    assert "serving.parquet: there is no column 'number'; there are name, float" in found["absent"]
    assert "training: there is no column 'sent'; there are day, name" in found["absent_in_training"]
    assert found["other_type"] == "training: identifier 'other_type' is INT, but FLOAT in serving"
    assert found["confusion"] == "confusion names 'integer', which is INT; expected strings, one in a row"
    assert (
        found["confusion_of_lists"]
        == "confusion names 'texts', which is several values in a row; expected strings, one in a row"
    )
    assert "confusion names colour; there are day, float" in found["confusion_of_nothing"]
    assert found["confusion_of_identifier"] == "confusion names name, which are not compared"
    assert "column 'when' is timestamp[s]" in found["time"]
