"""The validation stage: which anomalies are found, how severe they are, and what schema is proposed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow_data_validation as tfdv
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.ml import validation
from airflow_hops.ml.schema import classes_of, infer_schema, parse_schema, to_text
from airflow_hops.ml.schema.anomalies import find_anomalies
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.statistics import stage as feature_statistics
from airflow_hops.ml.validation import list_anomalies, validate_statistics
from airflow_hops.ml.validation.proposal import propose
from airflow_hops.ml.validation.quarantine import split_anomalous
from airflow_hops.ml.validation.validate import relax
from tests import flights_examples
from tests.ml.world import Flights

Change = Callable[[pd.DataFrame], pd.DataFrame]


@pytest.fixture(scope="module")
def statistics_of(flights: Flights) -> Callable[..., Artifact]:
    # The schema was inferred from every fourth flight: no value is new.
    january = flights.months(1, 1).iloc[::4].reset_index(drop=True)

    def make(change: Change | None = None, *, train: bool = True) -> Artifact:
        splits = {**({"train": january} if train else {}), "eval": change(january) if change else january}
        return flights.run(feature_statistics, examples=flights.examples(splits))

    return make


@pytest.fixture(scope="module")
def validate(flights: Flights) -> Callable[..., tuple[Artifact, Any]]:
    def run(statistics: Artifact, **values: Any) -> tuple[Artifact, Any]:
        artifact = flights.run(validation, statistics=statistics, **{"schema": flights.schema, **values})
        return artifact, flights.read(artifact, "anomalies.json")

    return run


def _some(name: str, value: Any, share: float) -> Change:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(**{name: frame[name].where(frame.index >= share * len(frame), value)})

    return change


@pytest.mark.parametrize(
    ("change", "feature", "severity", "kind", "words"),
    [
        (lambda f: f.drop(columns="temp"), "temp", "error", "SCHEMA_MISSING_COLUMN", "completely missing"),
        (lambda f: f.assign(temp=np.nan), "temp", "error", "FEATURE_TYPE_NOT_PRESENT", "not present in any examples"),
        (lambda f: f.assign(weekday=f["weekday"] + 0.5), "weekday", "error", "UNEXPECTED_DATA_TYPE", "INT but got FLO"),
        (_some("dest", "ZZZ", 0.02), "dest", "warning", "ENUM_TYPE_UNEXPECTED_STRING_VALUES", "ZZZ"),
        (_some("dest", "ZZZ", 0.5), "dest", "error", "ENUM_TYPE_UNEXPECTED_STRING_VALUES", "ZZZ"),
        (_some("carrier", None, 0.02), "carrier", "warning", "FEATURE_TYPE_LOW_FRACTION_PRESENT", "fewer examples"),
        (_some("carrier", None, 0.5), "carrier", "error", "FEATURE_TYPE_LOW_FRACTION_PRESENT", "fewer examples"),
        (lambda f: f.assign(tailwind=1.0), "tailwind", "warning", "SCHEMA_NEW_COLUMN", "New column"),
        (lambda f: f.assign(late=f["late"] * 2), "late", "error", "INT_TYPE_BIG_INT", "large value: 2"),
    ],
)
def test_anomalies_have_a_severity(
    statistics_of: Any, validate: Any, change: Change, feature: str, severity: str, kind: str, words: str
) -> None:
    artifact, report = validate(statistics_of(change, train=False))
    (anomaly,) = report["anomalies"]
    assert (anomaly["split"], anomaly["feature"], anomaly["severity"]) == ("eval", feature, severity)
    assert kind in anomaly["types"]
    (message,) = artifact.properties[f"{severity}s"]
    assert f"{severity} in split 'eval', feature '{feature}'" in message
    assert words in message
    assert (report["errors"], report["warnings"]) == ((1, 0) if severity == "error" else (0, 1))


def test_data_like_the_schema_has_no_anomaly_and_drift_from_an_earlier_span_is_a_warning(
    statistics_of: Any, validate: Any
) -> None:
    earlier = statistics_of()
    artifact, report = validate(earlier)
    assert (report["anomalies"], set(artifact.rows)) == ([], {"train", "eval"})
    assert artifact.metrics == {"errors": 0, "warnings": 0, "anomalous_features": 0, "drifted_features": 0}
    _, report = validate(statistics_of(lambda f: f.assign(temp=f["temp"] + 40)), previous=earlier)
    assert [(a["feature"], a["severity"], a["types"]) for a in report["anomalies"]] == [
        ("temp", "warning", ["COMPARATOR_L_INFTY_HIGH"])
    ]
    assert report["drift"]["eval"]["temp"] > 0.5
    assert max(report["drift"]["train"].values()) == 0


def test_columns_of_empty_texts_alone_are_anomalies() -> None:
    usual = pa.table({"name": [f"t{n}" for n in range(300)], "kind": ["a", "b"] * 150, "empty": [""] * 300})
    schema = infer_schema(generate_statistics(usual))
    emptied = pa.table({"name": [""] * 300, "kind": [" "] * 300, "empty": [""] * 300, "new": [None, *[""] * 299]})
    severities = {
        label: {
            each.feature: each.severity
            for each in list_anomalies(validate_statistics(generate_statistics(table), schema), label)
            if "values are empty texts" in each.description
        }
        for label, table in (("usual", usual), ("emptied", emptied))
    }
    # What the schema was made of is no error.
    assert severities["usual"] == {"empty": "warning"}
    assert severities["emptied"] == {"name": "error", "kind": "error", "empty": "warning", "new": "warning"}


def test_the_label_may_be_absent_from_examples_of_the_serving_environment(statistics_of: Any, validate: Any) -> None:
    served = statistics_of(lambda frame: frame.drop(columns="late"))
    _, report = validate(served)
    assert [(a["split"], a["feature"], a["severity"]) for a in report["anomalies"]] == [("eval", "late", "error")]
    _, report = validate(served, environment="SERVING", splits=["eval"])
    assert report["anomalies"] == []
    with pytest.raises(BadInput, match="environment 'NIGHT' is not in the schema; there are TRAINING, SERVING"):
        validate(served, environment="NIGHT")


def _schema(text: str) -> Any:
    return text_format.Parse(f'{text} default_environment: "TRAINING"', schema_pb2.Schema())


def test_a_change_in_the_number_of_rows_is_a_warning_and_too_few_are_an_error() -> None:
    statistics = {rows: generate_statistics(pa.table({"x": [1] * rows})) for rows in (3, 300)}
    drift = "num_examples_drift_comparator"
    for rows, previous, constraint, severity, kind in (
        (3, 300, f"{drift} {{ min_fraction_threshold: 0.5 }}", "warning", "COMPARATOR_LOW"),
        (300, 3, f"{drift} {{ max_fraction_threshold: 2 }}", "warning", "COMPARATOR_HIGH"),
        (3, None, "min_examples_count: 10", "error", "DATASET_LOW"),
    ):
        schema = _schema(f'feature {{ name: "x" type: INT }} dataset_constraints {{ {constraint} }}')
        (anomaly,) = list_anomalies(
            validate_statistics(statistics[rows], schema, previous=statistics.get(previous)), "train"
        )
        assert (anomaly.feature, anomaly.severity, *anomaly.types) == ("", severity, f"{kind}_NUM_EXAMPLES")


def test_features_may_have_dots_in_their_names(tmp_path: Path) -> None:
    schema = _schema('feature { name: "a.b" type: INT int_domain { max: 1 } } feature { name: "y.z" type: BYTES }')
    table = pa.table({"a.b": [1] * 99 + [5], "y.z": [1] * 100})
    anomalies = validate_statistics(generate_statistics(table), schema, target=Target("y.z"))
    # Few rows of the one are quarantined; the other has one class.
    split = split_anomalous(table.select(["a.b"]), schema, tmp_path / "good", tmp_path / "bad")
    relax(anomalies, split.by_feature, 0.05 * split.rows)
    assert [(result.feature, result.severity, *result.types) for result in list_anomalies(anomalies, "train")] == [
        ("y.z", "error", "UNEXPECTED_DATA_TYPE", "CUSTOM_VALIDATION"),
        ("a.b", "warning", "INT_TYPE_BIG_INT"),
    ]


@pytest.mark.parametrize(
    ("classes", "labels", "words"),
    [
        (("a", "b", "c"), [0, 1, 2], None),
        (("a", "b", "c"), [0, 0, 0], "All 3 rows have the label 'a'; expected two or more of 'a', 'b', 'c'."),
        (("a", "c"), [0, 1, 1], "The label has the classes 'a', 'c', in this order; the schema has 'a', 'b', 'c'. A"),
        (("a", "c", "b"), [0, 1, 2], "The label has the classes 'a', 'c', 'b', in this order; the schema has 'a', "),
        (("a", "aa", "b", "c"), [0, 1, 3], "The label has the classes 'a', 'aa', 'b', 'c', in this order; the schema"),
        (None, [0, 1, 1], "The label has no names of classes; the schema has 'a'"),
    ],
)
def test_renumbered_label_classes_are_an_error_with_a_proposal(
    classes: tuple[str, ...] | None, labels: list[int], words: str | None
) -> None:
    schema = infer_schema(generate_statistics(pa.table({"y": [0, 1, 2]})), label="y", classes=("a", "b", "c"))
    schema = parse_schema(to_text(schema), "written")
    target = Target("y", "multiclass" if classes and len(classes) > 2 else "binary", classes)
    statistics = generate_statistics(pa.table({"y": labels}))
    anomalies = list_anomalies(validate_statistics(statistics, schema, target=target), "train")
    assert [(each.feature, each.severity) for each in anomalies] == ([("y", "error")] if words else [])
    assert words is None or words in anomalies[0].description
    proposal = propose(schema, {"train": statistics}, target=target)
    if classes not in (None, ("a", "b", "c")):
        assert classes_of(proposal.schema, "y") == classes and proposal.left == ()
        assert "class:" in str(proposal.difference)
    else:
        assert proposal.schema is None


def test_a_damaged_schema_is_named(flights: Flights, validate: Any) -> None:
    text = "feature { name: 'temp' kind: ??? }"
    schema = flights.artifact("schema", lambda folder: (folder / "schema.pbtxt").write_text(text))
    with pytest.raises(BadInput, match=r"schema\.pbtxt:1:24: not a schema in protobuf text.*kind"):
        validate(flights.statistics, schema=schema)


def test_anomalous_data_gets_a_proposed_schema(statistics_of: Any, validate: Any, flights: Flights) -> None:
    artifact, report = validate(statistics_of(_some("dest", "Z`Z", 0.5), train=False))
    folder = flights.store.local(artifact)
    (change,) = report["proposed"]["changes"]
    assert (change["feature"], change["aspect"], change["text"]) == ("dest", "domain", "domain gains 'Z`Z'")
    assert "Z`Z" in (folder / "proposed.pbtxt").read_text()
    assert set(artifact.properties["proposed_features"]) == {"late", "scheduled_at", *flights_examples.FEATURES}
    page = (folder / "proposal.md").read_text()
    assert "### 1 anomaly" in page
    assert "- **dest**: domain gains 'Z\\`Z'" in page


def test_unfixable_anomalies_get_no_proposal(statistics_of: Any, validate: Any, flights: Flights) -> None:
    artifact, report = validate(statistics_of(lambda f: f.assign(late=0)))
    (anomaly,) = report["anomalies"]
    assert (anomaly["feature"], anomaly["severity"]) == ("late", "error")
    assert "CUSTOM_VALIDATION" in anomaly["types"]
    assert "rows have the label 0; expected both 0" in anomaly["description"]
    assert report["proposed"] is artifact.properties["proposed_features"] is None
    folder = flights.store.local(artifact)
    assert not (folder / "proposed.pbtxt").exists()
    assert "No change to the schema would make this data valid" in (folder / "proposal.md").read_text()


def test_rows_are_split_with_sampled_statistics(flights: Flights, validate: Any) -> None:
    january = flights.months(1, 1).iloc[::40].reset_index(drop=True)
    examples = flights.examples({"train": january})
    sampled = flights.run(feature_statistics, examples=examples, options={"sample_rate": 0.5})
    assert sampled.metrics["train_rows"] < len(january)
    artifact, _ = validate(sampled, examples=examples, split_anomalous=True)
    assert artifact.rows["train"].rows_in == len(january)


def test_examples_of_other_statistics_are_refused(flights: Flights, validate: Any) -> None:
    few = flights.months(1, 1).head(100)
    examples = flights.examples({"train": few, "eval": few})
    with pytest.raises(BadInput, match=r"split 'train' has 100 rows, and its statistics are of \d+"):
        validate(flights.statistics, examples=examples, run_id="of-few", split_anomalous=True)
    rows = flights.store.address(Producer("tests", "of-few", "anomalies"), "examples")
    assert not flights.store.exists(rows)


@pytest.mark.slow
def test_many_features_are_validated_as_tfdv_does() -> None:
    random, rows = np.random.default_rng(2), 40

    def table(shift: int, first: int) -> pa.Table:
        columns: dict[str, Any] = {}
        for number in range(first, 260):
            columns[f"number_{number}"] = random.normal(shift if number % 7 == 0 else 0, 1, rows)
            columns[f"text_{number}"] = [f"v{(row + shift * (number % 5)) % 4}" for row in range(rows)]
        columns["nested"] = [{"x": row, "y": ["a", "b"][row % 2] * (1 + shift)} for row in range(rows)]
        return pa.table(columns)

    old, new = generate_statistics(table(0, 0)), generate_statistics(table(1, 3))
    schema = infer_schema(old)
    schema.dataset_constraints.min_examples_count = 50
    for feature in schema.feature:
        if feature.name.startswith("number"):
            feature.drift_comparator.jensen_shannon_divergence.threshold = 0.2
        else:
            feature.drift_comparator.infinity_norm.threshold = 0.01
    ours = find_anomalies(new, schema, environment="TRAINING", previous=old)
    theirs = tfdv.validate_statistics(new, schema, environment="TRAINING", previous_statistics=old)
    assert len(theirs.anomaly_info) > 50 and theirs.HasField("dataset_anomaly_info")
    assert {name: str(info) for name, info in ours.anomaly_info.items()} == {
        name: str(info) for name, info in theirs.anomaly_info.items()
    }
    assert sorted(map(str, ours.drift_skew_info)) == sorted(map(str, theirs.drift_skew_info))
    assert (ours.dataset_anomaly_info, ours.data_missing) == (theirs.dataset_anomaly_info, theirs.data_missing)
    assert ours.baseline == theirs.baseline
