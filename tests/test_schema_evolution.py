"""Differences of schemas, and proposals for data that has changed, held against TFDV itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)


def _check(name: str, shared_run_step: Any, warm_launcher: Any) -> Any:
    return shared_run_step(f"schema_checks:{name}", code_paths=CHECKS, launcher=warm_launcher)


@pytest.fixture(scope="module")
def proposals(shared_run_step: Any, warm_launcher: Any) -> Any:
    return _check("proposals", shared_run_step, warm_launcher)


@pytest.fixture(scope="module")
def differences(shared_run_step: Any, warm_launcher: Any) -> Any:
    return _check("differences", shared_run_step, warm_launcher)


EXPECTED = {
    "as before": [],
    "new string column": [
        "airport: new feature: type BYTES, presence in at least 100% of the rows, values per row 1, "
        "domain 2 values ('JFK', 'LGA')"
    ],
    "new number": ["wind: new feature: type FLOAT, presence in at least 100% of the rows, values per row 1"],
    "missing column": ["temp: lifecycle_stage is DEPRECATED, was none"],
    "new domain value": ["carrier: domain gains 'ZZ'"],
    "integer has become text": [
        "seats: type is BYTES, was INT",
        "seats: range is none, was 0 to 4",
        "seats: skew_comparator is infinity_norm 0.05, was jensen_shannon_divergence 0.2",
        "seats: drift_comparator is infinity_norm 0.05, was jensen_shannon_divergence 0.2",
        "seats: domain is 2 values ('few', 'many'), was none",
    ],
    "integer has become float": ["seats: type is FLOAT, was INT", "seats: range is 0 to 4.975, was 0 to 4"],
    "float has become integer": [
        "temp: type is INT, was FLOAT",
        "temp: float_domain is none, was {disallow_inf: true}",
    ],
    "text has become integer": [
        "carrier: type is INT, was BYTES",
        "carrier: domain is none, was 2 values ('AA', 'B6')",
        "carrier: skew_comparator is jensen_shannon_divergence 0.2, was infinity_norm 0.05",
        "carrier: drift_comparator is jensen_shannon_divergence 0.2, was infinity_norm 0.05",
    ],
    "less often present": ["gate: presence is in at least 50% of the rows, was in at least 70% of the rows"],
    "all missing": ["carrier: lifecycle_stage is DEPRECATED, was none"],
    "out of range": ["temp: range is -50.5 to 148.5, was 0 to 90", "seats: range is 0 to 199, was 0 to 4"],
    "multivalent": ["seats: values per row is 1 to 2, was 1"],
    "infinite": [
        "temp: range is 0 to inf, was 0 to 90",
        "temp: float_domain is {disallow_inf: false}, was {disallow_inf: true}",
    ],
    "several at once": [
        "carrier: domain gains 'ZZ'",
        "temp: lifecycle_stage is DEPRECATED, was none",
        "seats: type is FLOAT, was INT",
        "seats: range is 0 to 4.975, was 0 to 4",
        "wind: new feature: type FLOAT, presence in at least 100% of the rows, values per row 1",
    ],
}


@pytest.mark.parametrize("environment", ["TRAINING", "SERVING"])
@pytest.mark.parametrize("data", EXPECTED)
def test_a_proposed_schema_lets_the_data_through_and_changes_what_it_must(
    proposals: Any, data: str, environment: str
) -> None:
    found = proposals[f"{data}, {environment}"]
    assert bool(found["anomalies_before"]) == (data != "as before")
    assert found["anomalies_after"] == []
    assert found["again"], "a proposal of the proposal is the same"
    expected = EXPECTED[data]
    if environment == "SERVING":
        gone, absent = "temp: lifecycle_stage is DEPRECATED, was none", "temp: not_in_environment is SERVING, was none"
        expected = [absent if line == gone else line for line in expected]
    assert found["diff"] == expected


@pytest.mark.parametrize(
    "data",
    [
        "as before",
        "missing column",
        "new domain value",
        "less often present",
        "all missing",
        "out of range",
        "multivalent",
    ],
)
def test_where_tfdv_has_an_answer_of_its_own_the_proposal_is_that(proposals: Any, data: str) -> None:
    assert proposals[f"{data}, TRAINING"]["as_tfdv"]


def test_a_label_that_appears_in_serving_is_declared_there(proposals: Any) -> None:
    assert proposals["label in serving"] == "late: not_in_environment is none, was SERVING"


def test_an_inferred_schema_fits_its_own_data_also_with_a_label_of_floats(proposals: Any) -> None:
    assert proposals["label of fractions"] == []


def test_a_bound_that_no_integer_reaches_is_dropped_when_a_float_becomes_one(proposals: Any) -> None:
    assert proposals["wide range"][:2] == [
        "temp: type is INT, was FLOAT",
        "temp: range is at most 50, was -1e+30 to 50.5",
    ]


def test_bounds_of_the_rows_move_and_what_no_schema_can_cure_is_refused(proposals: Any) -> None:
    found = proposals["rows"]
    assert found["anomalies"] == [["DATASET_LOW_NUM_EXAMPLES"], []]
    assert found["diff"] == ("schema: dataset_constraints is {min_examples_count: 200}, was {min_examples_count: 1000}")
    assert found["refused"] == [
        "the statistics are of no rows; a schema cannot be proposed from them",
        "environment 'NIGHT' is not in the schema; there are TRAINING, SERVING",
    ]


@pytest.mark.parametrize(
    ("mutation", "text"),
    [
        ("added", "wind: new feature: type FLOAT"),
        ("removed", "temp: removed"),
        ("type", "seats: type is FLOAT, was INT"),
        ("presence", "carrier: presence is in at least 12.3456% of the rows, was in at least 100% of the rows"),
        (
            "min_count",
            "carrier: presence is in at least 100% of the rows, at least 30 times, was in at least 100% of the rows",
        ),
        ("no presence", "carrier: presence is none, was in at least 100% of the rows"),
        ("domain gains", "carrier: domain gains 'YY', 'ZZ'"),
        ("domain changes", "carrier: domain gains '9E'; loses 'AA'"),
        ("domain gains many", "carrier: domain gains 'x0', 'x1', 'x10', 'x100', 'x101' and 395 more"),
        (
            "domain undefined",
            "schema: unused string_domain 'carrier' is 2 values ('AA', 'B6'), was none\n"
            "carrier: domain is 'nowhere', which is not defined, was 2 values ('AA', 'B6')",
        ),
        ("values per row", "temp: values per row is 1 to 3, was 1"),
        ("shape", "temp: values per row is none, was 1\ntemp: shape is {dim { size: 2 }}, was none"),
        ("environments", "schema: environments is BATCH, SERVING, TRAINING, was SERVING, TRAINING"),
        ("not_in", "gate: not_in_environment is SERVING, was none"),
        ("in", "gate: in_environment is SERVING, was none"),
        ("drift", "temp: drift_comparator is jensen_shannon_divergence 0.3, was jensen_shannon_divergence 0.2"),
        ("skew gone", "temp: skew_comparator is none, was jensen_shannon_divergence 0.42"),
        ("range", "temp: range is 0 to 120.5, was 0 to 90"),
        ("open range", "seats: range is at least 0, was 0 to 4"),
        ("infinite range", "temp: range is 0 to inf, was 0 to 90"),
        ("no infinity", "temp: float_domain is {disallow_inf: false}, was {disallow_inf: true}"),
        ("deprecated", "temp: lifecycle_stage is DEPRECATED, was none"),
        ("old flag", "temp: deprecated is True, was none"),
        ("distribution", "carrier: distribution_constraints is {min_domain_mass: 0.9}, was none"),
        ("unique", "carrier: unique_constraints is {max: 9}, was none"),
        ("annotation", 'carrier: annotation is {tag: "by hand" tag: "more"}, was {tag: "by hand"}'),
        ("sparse", "schema: sparse_feature 'words' is {name: \"words\" value_feature { name: \"temp\" }}, was none"),
        ("weighted", "schema: weighted_feature 'heavy' is {name: \"heavy\" feature { step: \"temp\" }}, was none"),
        ("rows", "schema: dataset_constraints is {min_examples_count: 7}, was none"),
        ("unused domain", "schema: unused string_domain 'spare' is 1 value ('a'), was none"),
        (
            "nested",
            "schema: unused string_domain 'gate' is 1 value ('A1'), was none\n"
            "gate: domain is none, was 1 value ('A1')\ngate.letter: new feature: type BYTES",
        ),
    ],
)  # fmt: skip
def test_a_difference_is_told_in_words(differences: Any, mutation: str, text: str) -> None:
    assert differences[mutation]["text"] == text
    assert differences[mutation]["back"] not in ("", text)
    json.dumps(differences[mutation]["changes"], allow_nan=False)
    assert [f"{c['feature'] or 'schema'}: {c['text']}" for c in differences[mutation]["changes"]] == text.splitlines()


@pytest.mark.parametrize("mutation", ["domain dropped", "semantic", "tensors"])
def test_no_difference_goes_unseen(differences: Any, mutation: str) -> None:
    assert differences[mutation]["text"]


@pytest.mark.parametrize(
    "mutation", ["same", "order of features", "order of values", "name of the domain", "inline domain"]
)
def test_what_means_the_same_is_no_difference(differences: Any, mutation: str) -> None:
    assert differences[mutation]["text"] == "" and differences[mutation]["changes"] == []


def test_a_difference_is_json_markdown_and_of_paths_too(differences: Any) -> None:
    assert differences["domain gains"]["changes"] == [
        {
            "feature": "carrier",
            "aspect": "domain",
            "before": ["AA", "B6"],
            "after": ["AA", "B6", "YY", "ZZ"],
            "text": "domain gains 'YY', 'ZZ'",
        }
    ]
    assert differences["deprecated"]["markdown"] == "- **temp**: lifecycle\\_stage is DEPRECATED, was none"
    assert differences["markup"]["markdown"] == (
        "- **carrier**: domain gains '\\<b\\>\\[x\\]\\(http\\://y\\)\\`\\*\\_\\|'"
    )
    assert differences["of paths"]
    assert len(differences["long"]) == 11 and differences["long"][-1] == "- and 290 more"


def test_a_schema_that_does_not_parse_is_told_with_line_and_column(shared_run_step: Any, warm_launcher: Any) -> None:
    errors = _check("parse_errors", shared_run_step, warm_launcher)
    assert errors[0].startswith("s.pbtxt:3:3: not a schema in protobuf text: Message type ")
    assert errors[1] == 's.pbtxt:1:9: not a schema in protobuf text: Expected "}".'
    assert errors[2].startswith("s.pbtxt:1:17: not a schema in protobuf text: ")
    assert errors[3] == "s.pbtxt: feature 1 of 1: expected a name of its own, none"
    assert errors[4] == "s.pbtxt: feature 2 of 2: expected a name of its own, a second one named 'x'"
    assert "latin.pbtxt: not a schema in protobuf text (" in errors[5]
