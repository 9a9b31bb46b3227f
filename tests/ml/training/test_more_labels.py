"""Models of several labels: from raw tables through every stage to an answered, captured request."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from more_labels_functions import CAUSES
from server_process import ServerProcess, write_models
from sklearn.linear_model import LinearRegression, LogisticRegression
from tensorflow_metadata.proto.v0.statistics_pb2 import DatasetFeatureStatisticsList

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties, SchemaProperties
from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.models.samples import Sample
from airflow_hops.ml.models.trained_models import answers_of
from airflow_hops.ml.prepare import stage as prepare
from airflow_hops.ml.rollout.answers import read_captured
from airflow_hops.ml.schema import classes_of, load_schema
from airflow_hops.ml.validation import stage as validation
from airflow_hops.ml.validation.validate import list_anomalies, validate_statistics
from tests.ml.training.trainings import Trainings, transform_examples
from tests.ml.world import Flights

pytestmark = pytest.mark.xdist_group("spark")

ROWS = 1200
LABELS = ("late", "minutes", "cause")
MORE: dict[str, Any] = {"minutes": {"problem": "regression"}, "cause": {"problem": "multiclass", "classes": CAUSES}}
OPTIONS = {
    "prepare": "more_labels_functions:prepare",
    "label": "late",
    "key": "parcel",
    "more_labels": {"minutes": "regression", "cause": CAUSES},
}
OUTPUTS = {"probability", "minutes_prediction", "cause_probabilities", "cause_class"}


def parcels(rows: int = ROWS) -> pa.Table:
    """Parcels whose minutes and cause follow from distance and load; a few lack a label."""
    random = np.random.default_rng(3)
    distance, load = random.normal(size=(2, rows))
    minutes = 10 * distance + 4 * load + random.normal(size=rows)
    cause = np.array(CAUSES, object)[np.digitize(load, [-0.5, 0.5])]
    minutes[5], cause[7], cause[8] = np.nan, None, "pirates"
    return pa.table(
        {
            "parcel": [f"p{number}" for number in range(rows)],
            "distance": distance.astype("float32"),
            "load": load.astype("float32"),
            "hour": np.arange(rows) % 24,
            "late": (minutes > 3).astype(int),
            "minutes": pa.array(minutes, from_pandas=True),
            "cause": cause,
        }
    )


@pytest.fixture(scope="module")
def examples(spark: Any, flights: Flights) -> Artifact:
    made: Artifact = flights.run(prepare, tables=flights.snapshot({"parcels": parcels()}), **OPTIONS)
    return made


@pytest.fixture(scope="module")
def described(flights: Flights, examples: Artifact) -> dict[str, Artifact]:
    """The examples with their statistics and schema."""
    return flights.described(examples)


@pytest.fixture(scope="module")
def transformed(trainings: Trainings, described: dict[str, Artifact]) -> Artifact:
    return transform_examples(trainings, "more_labels_functions:preprocess", described)


@pytest.fixture(scope="module")
def of_keras(trainings: Trainings, transformed: Artifact) -> Artifact:
    function = "more_labels_functions:train_keras"
    return trainings(function, transformed, run_id="labels-keras", strategy="single", np=1)


@pytest.fixture(scope="module")
def of_estimators(trainings: Trainings, transformed: Artifact) -> Artifact:
    function = "more_labels_functions:train_estimators"
    return trainings(function, transformed, run_id="labels-sklearn", strategy="single", np=1)


def test_examples_hold_each_label_as_a_number(examples: Artifact, flights: Flights) -> None:
    properties = ExamplesProperties.of(examples)
    assert (properties.label, properties.problem, properties.more_labels) == ("late", "binary", MORE)
    assert [each.label for each in properties.target.all] == list(LABELS)
    table = flights.rows(examples, "train")
    assert table.column_names == ["parcel", *LABELS, "distance", "load", "hour"]
    assert [str(table.schema.field(name).type) for name in LABELS] == ["int64", "double", "int64"]
    reasons = {"minutes is missing": 1, "cause is missing": 1, "cause is none of the classes": 1}
    assert examples.rows["parcels"].rejected == reasons
    result, raw = table.to_pandas().set_index("parcel"), parcels().to_pandas().set_index("parcel").loc
    assert result["minutes"].equals(raw[result.index]["minutes"])
    assert [CAUSES[number] for number in result["cause"]] == raw[result.index]["cause"].tolist()


def test_further_labels_are_not_features(
    flights: Flights, described: dict[str, Artifact], transformed: Artifact
) -> None:
    assert SchemaProperties.of(described["schema"]).more_labels == MORE
    schema = load_schema(flights.store.local(described["schema"]) / "schema.pbtxt")
    assert classes_of(schema, "cause") == tuple(CAUSES)
    absent = {feature.name for feature in schema.feature if "SERVING" in feature.not_in_environment}
    assert absent == set(LABELS)
    assert not [f.name for f in schema.feature if f.name in LABELS and f.HasField("skew_comparator")]
    anomalies = flights.run(validation, statistics=described["statistics"], schema=described["schema"])
    assert anomalies.properties["errors"] == []
    more = {**MORE, "cause": {"problem": "multiclass", "classes": CAUSES[::-1]}}
    turned = Target.from_properties("late", "binary", None, None, more)
    path = flights.store.local(described["statistics"]) / "train" / "FeatureStats.pb"
    numbers = DatasetFeatureStatisticsList.FromString(path.read_bytes())
    (anomaly,) = list_anomalies(validate_statistics(numbers, schema, target=turned), "train")
    assert anomaly.feature == "cause" and "The label has the classes 'sorting', 'road', 'air'" in anomaly.description
    specs = FeatureSpecs.read(flights.store.local(transformed) / "features.json")
    assert list(specs.features) == ["distance", "load", "hour"]
    assert specs.target == ExamplesProperties.of(described["examples"]).target
    assert flights.rows(transformed, "train").column_names == ["numeric", "hour", *LABELS]


TARGET = Target.from_properties("late", "binary", None, None, MORE)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["late", "cause"], "the train function has no output for the label 'minutes'; it gives 'late', 'cause'"),
        (
            [*LABELS, "lost"],
            "the train function returned a model for 'lost'; the labels are 'late', 'minutes', 'cause'",
        ),
    ],
)
def test_each_label_has_an_estimator(labels: list[str], words: str) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 2))
    estimators = {"minutes": LinearRegression().fit(rows, rows[:, 0])}
    estimators |= {name: LogisticRegression().fit(rows, np.arange(60) % 2) for name in ("late", "lost")}
    estimators["cause"] = LogisticRegression().fit(rows, np.arange(60) % 3)
    with pytest.raises(BadInput, match=words):
        answers_of({name: estimators[name] for name in labels}, Sample.of(rows, ["a", "b"]), "sklearn", TARGET)


def test_a_transform_does_not_see_a_further_label(trainings: Trainings, described: dict[str, Artifact]) -> None:
    for function, words in (
        ("preprocess_that_takes_a_label", "there is no raw feature 'minutes'; there are distance, load, hour"),
        ("preprocess_with_the_name_of_a_label", "output 'minutes' has the name of a label"),
    ):
        with pytest.raises(BadInput, match=words):
            transform_examples(trainings, f"more_labels_functions:{function}", described)


def test_every_label_is_answered_and_captured(
    of_keras: Artifact, of_estimators: Artifact, examples: Artifact, flights: Flights, tmp_path: Path
) -> None:
    rows = flights.rows(examples, "eval").to_pandas().head(20)
    asked = {name: rows[name].to_numpy() for name in ("distance", "load", "hour")}
    for name, model, folder in (("deep", of_keras, "saved_model"), ("flat", of_estimators, "onnx")):
        properties = ModelProperties.of(model)
        assert properties.more_labels == MORE and properties.label == "late"
        assert not set(LABELS) & set(properties.inputs or ())
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").symlink_to(flights.store.local(model) / folder)
    config = write_models(tmp_path, deep=tmp_path / "deep", flat=tmp_path / "flat")
    flags = {
        "model_config_file": config,
        "capture_base_path": tmp_path / "captured",
        "capture_sampling_percent": 100,
    }
    server = ServerProcess(Path(sys.executable), tmp_path / "server", flags).start().wait_until_ready()
    try:
        with ModelServerClient(server.address) as client:
            for name, more in (("deep", {"embedding"}), ("flat", set[str]())):
                taken = client.metadata(name).signatures["serving_default"].inputs
                arguments = {column: values for column, values in asked.items() if column in taken}
                result = client.predict(name, arguments).outputs
                assert set(result) == OUTPUTS | more
                assert np.corrcoef(result["minutes_prediction"], rows["minutes"])[0, 1] > 0.8
                answer = server.predict(name, {"inputs": {name: v.tolist() for name, v in arguments.items()}})[
                    "outputs"
                ]
                assert answer["minutes_prediction"] == pytest.approx(result["minutes_prediction"], rel=1e-4, abs=1e-4)
                assert answer["cause_class"] == [value.decode() for value in result["cause_class"]]
        server.flush()
    finally:
        server.close()
    for name, more in (("deep", {"embedding"}), ("flat", set[str]())):
        files = list((tmp_path / "captured" / name).rglob("*.parquet"))
        columns = {column for file in files for column in pq.read_schema(file).names}
        assert {f"output.{output}" for output in OUTPUTS | more} <= columns
        # A rollout goes by the first label alone.
        requests = CapturedRequests(str(tmp_path / "captured"), name)
        captured = read_captured(requests, 1, datetime(2020, 1, 1, tzinfo=UTC))
        assert set(captured.outputs) == {"probability"} and len(captured.outputs["probability"].values) == 40
