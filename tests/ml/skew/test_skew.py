"""The skew stage: captured requests against the training data of the model that serves, and spans against spans."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.ml.schema import SCHEMA_FILE, load_schema
from airflow_hops.ml.skew import stage as skew
from airflow_hops.ml.statistics import stage as feature_statistics
from airflow_hops.serving.capture.capture import Capture
from airflow_hops.serving.capture.options import CaptureOptions
from tests.captured_flights import INPUTS, CaptureFolder, write_champion
from tests.flights_examples import FEATURES
from tests.ml.conftest import Bucket
from tests.ml.world import Flights


@pytest.fixture(scope="module")
def record(flights: Flights) -> str:
    """Address of the record of a champion that was trained on January to March, as deployment writes it."""
    return write_champion(flights.store, flights.statistics, flights.schema)


class Detect:
    """Runs the skew step over the requests that a test captures, with a cursor of the test's own."""

    def __init__(self, flights: Flights, folder: Path) -> None:
        self.flights, self.captured = flights, CaptureFolder(folder / "captured")
        self._task_id = f"skew-{folder.name}"

    def __call__(
        self, run_id: str | None = None, *, services: dict[str, str] | None = None, **values: Any
    ) -> tuple[Artifact, Any]:
        services = services or {"serving_capture_path": str(self.captured.path)}
        # Tests that are about p-values set alpha; only few have a model that predicts.
        values = {
            "model_name": "flights", "time_feature": "scheduled_at", "alpha": None, "predictions": False, **values,
        }  # fmt: skip
        artifact = self.flights.run(skew, services=services, run_id=run_id, task_id=self._task_id, **values)
        return artifact, self.flights.read(artifact, "report.json")

    def refused(self, words: str, run_id: str, error: type[HopsError] = BadInput, **values: Any) -> HopsError:
        """Returns the refusal of a run."""
        with pytest.raises(error, match=words) as failure:
            self(run_id, **values)
        return failure.value


@pytest.fixture
def detect(flights: Flights, record: str, tmp_path: Path) -> Detect:
    return Detect(flights, tmp_path)


def test_july_has_drifted_from_a_winter(detect: Detect, flights: Flights) -> None:
    july = flights.months(7, 7).iloc[::4]
    files = [detect.captured.add(july.iloc[:4000]), detect.captured.add(july.iloc[4000:], version=4)]
    artifact, report = detect(alpha=0.01)
    assert artifact.properties["captured_files"] == [file.name for file in files]
    assert report["verdict"] == "drift"
    assert report["drifted"][:2] == ["temp", "dewp"]
    assert set(artifact.properties["causes"].values()) == {"covariate_shift"}  # a season is not a fault
    assert "carrier" not in report["drifted"]
    assert set(report["features"]) == set(FEATURES)
    temp = report["features"]["temp"]
    assert temp["measure"] == report["features"]["dest"]["measure"] == "distance"
    assert temp["score"] > 0.9 > temp["threshold"] == 0.05
    assert re.match(r"median 8\d\.\d+, 3\d\.\d+ in the reference", temp["summary"])
    manufacturer = report["features"]["plane_manufacturer"]
    assert manufacturer["missing_current"] == pytest.approx(july["plane_manufacturer"].isna().mean(), abs=1e-6)
    assert report["versions"] == {"3": 4000, "4": len(july) - 4000}
    assert report["rows_current"] == artifact.rows["captured"].rows_in == len(july)
    assert report["rows_reference"] > 15_000
    statistics = flights.statistics
    assert artifact.properties["reference"] == report["reference"] == {
        "model": "flights", "version": 3, "statistics": statistics.uri, "schema": flights.schema.uri,
        "fingerprint": statistics.fingerprint,
    }  # fmt: skip
    looked_up = flights.store.manifest(artifact.uri).inputs["reference"]  # by the step itself
    assert [each.uri for each in looked_up] == [statistics.uri]
    assert artifact.properties["drifted"] == report["drifted"]
    assert artifact.properties["scores"]["temp"] == [temp["score"], 0.05]
    # The last flight of July is scheduled after midnight of August in UTC.
    assert artifact.properties["window_end"] == "2013-08-02T00:00:00+00:00"
    assert datetime.fromisoformat(report["captured_from"]) == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert datetime.fromisoformat(report["captured_until"]) == datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC)


@pytest.mark.slow
def test_requests_are_compared_with_windows_of_the_training_data(detect: Detect, flights: Flights) -> None:
    first_days = flights.months(7, 7).query("scheduled_at < 1373000000").iloc[::2]
    detect.captured.add(first_days)
    july = detect("plain", alpha=0.01)[1]
    detect.captured.add(first_days)
    own = detect("own", alpha=0.01, attribute=False, own_windows=True)[1]
    assert own["notes"][0].startswith("Compared with the most similar of ")
    assert set(own["drifted"]) < set(july["drifted"]) and "temp" in own["drifted"]
    temp = own["features"]["temp"]
    assert temp["score"] > temp["threshold"] > 0.5


def test_requests_in_an_object_store_are_compared(detect: Detect, flights: Flights, bucket: Bucket) -> None:
    january = flights.months(1, 1)
    first, second = detect.captured.add(january.iloc[:700]), detect.captured.add(january.iloc[700:1200])
    _, expected = detect("local", min_rows=1000)
    folder = f"{bucket.url}/server 1"
    services = {"serving_capture_path": f"{folder}/", "serving_storage_options": json.dumps(bucket.options)}

    def put(content: bytes, time: str) -> str:
        path = f"{folder}/flights/{time}.000000Z-v3-17.parquet"
        bucket.fs.pipe_file(path, content)
        return path

    def run(run_id: str) -> Any:
        return detect(run_id, min_rows=1000, services=services)[1]

    assert run("nothing-yet")["verdict"] == "insufficient"
    put(first.read_bytes(), "20240101T000000")
    put(second.read_bytes(), "20240101T000001")
    bucket.fs.pipe_file(f"{folder}/flights/_feedback/20240101T000002.000000Z-labels.parquet", b"labels")
    report = run("both")
    for name in ("verdict", "features", "versions", "rows_current", "captured_until"):
        assert report[name] == expected[name]
    # The next run begins behind what the last one saw.
    put(first.read_bytes(), "20240101T000003")
    assert run("the-third")["rows_current"] == 700
    broken = put(first.read_bytes()[:-100], "20240101T000004")
    detect.refused(f"{broken}: cannot be read: .*; the file is damaged", "damaged", services=services)
    away = {"endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 0}}}
    for changed, words, is_final in (
        ({"serving_storage_options": json.dumps(away)}, f"{folder}/flights: cannot be read: ", False),
        ({"serving_capture_path": "hsss://bucket"}, "'hsss://bucket': Protocol not known: hsss", True),
    ):
        failure = detect.refused(words, "away", HopsError, services={**services, **changed})
        assert isinstance(failure, BadInput) == is_final, "others may be tried again"


@pytest.fixture
def champion_with_model(flights: Flights, record: str) -> Iterator[Artifact]:
    """A champion whose model can be loaded: it says 0.5 at 40 °F, and 0.005 more for each degree."""

    def serve(temp: Any) -> Any:
        return {"probability": 0.5 + 0.005 * (tf.where(tf.math.is_nan(temp), 40.0, temp) - 40.0)}

    model = flights.served_function(serve, {"temp": tf.float32})
    record_text = flights.store.read_text(record)
    value = json.loads(record_text)
    value["champion"]["model"] = {**model.to_dict(), "properties": {"features": INPUTS[:-1]}}
    flights.store.write_text(record, json.dumps(value))
    yield model
    flights.store.write_text(record, record_text)


@pytest.mark.slow
def test_drift_is_attributed_to_predictions(detect: Detect, champion_with_model: Artifact, flights: Flights) -> None:
    july, winter = flights.months(7, 7), flights.months(1, 3)
    detect.captured.add(july.iloc[::6])
    artifact, report = detect(min_rows=1000, alpha=0.01, predictions=True)
    assert report["verdict"] == artifact.properties["verdict"] == "drift"
    assert report["notes"] == []
    prediction = report["prediction"]
    assert prediction["drifted"] and prediction["score"] == pytest.approx(report["features"]["temp"]["score"], abs=0.02)
    assert artifact.properties["prediction"] == [prediction["score"], prediction["threshold"]]
    warmer = july["temp"].mean() - winter["temp"].mean()
    result = report["attribution"]["effects"]["temp"]
    assert result["effect"] == pytest.approx(result["effect_signed"]) == pytest.approx(0.005 * warmer, rel=0.1)
    assert report["features"]["temp"]["effect"] == result["effect"] == artifact.properties["effects"]["temp"]
    shift = report["attribution"]["prediction_current"] - report["attribution"]["prediction_reference"]
    assert shift == pytest.approx(0.005 * warmer, rel=0.1)
    # The model takes nothing else, whatever else has moved.
    assert set(report["attribution"]["effects"]) == {"temp"}
    assert artifact.properties["causes"]["temp"] == "covariate_shift"


def test_missing_model_leaves_a_note_in_the_report(detect: Detect, flights: Flights) -> None:
    detect.captured.add(flights.months(7, 7).iloc[::6])
    _, report = detect(min_rows=1000)
    assert report["verdict"] == "drift"
    assert report["attribution"] is None
    assert report["features"]["temp"]["effect"] is None
    assert re.match("Predictions, and effects on them, are not known: .*file:///model", report["notes"][0])
    assert detect(min_rows=1000, attribute=False)[1]["notes"] == []


def test_skewed_rows_are_found_by_identifier(detect: Detect, champion_with_model: Artifact, flights: Flights) -> None:
    winter = flights.months(1, 3)
    learnt = winter[winter.index % 4 == 0]
    served = winter.assign(temp=(winter["temp"] - 32) / 1.8, carrier=winter["carrier"].str.lower())
    for rows in (served.loc[learnt.index].iloc[:9000], served.loc[learnt.index].iloc[9000:]):
        detect.captured.add(rows)
    detect.captured.add(served[winter.index % 4 == 1].iloc[:1000])
    identifiers = ["scheduled_at", "origin", "dest", "plane_seats", "scheduled_arrival_minute"]
    artifact, report = detect(alpha=0.01, identifiers=identifiers)
    rows = report["row_skew"]
    assert rows["skewed"] == artifact.properties["skewed"]
    assert set(rows["skewed"][:2]) == {"temp", "carrier"}
    assert rows["matches"]["base_with_id_count"] == learnt["plane_seats"].notna().sum()
    assert rows["pairs"] > 0.95 * rows["matches"]["base_with_id_count"]
    temp = rows["features"]["temp"]
    assert temp["mismatch_count"] == temp["base_count"] == temp["test_count"] > 0.99 * rows["pairs"]
    assert rows["features"]["dewp"]["diff_count"] == rows["features"]["plane_manufacturer"]["diff_count"] == 0
    for example in temp["examples"]:
        assert example["serving"] == pytest.approx((example["training"] - 32) / 1.8, abs=1e-4)
        assert set(example["identifier"]) == set(identifiers)
    for example in rows["features"]["carrier"]["examples"]:
        assert example["serving"] == example["training"].lower()
    assert report["verdict"] == "pipeline_fault"
    assert artifact.properties["causes"]["temp"] == "unit_change"
    assert artifact.properties["causes"]["carrier"] == "new_category"


def test_rows_are_compared_with_chosen_examples(detect: Detect, flights: Flights) -> None:
    july = flights.months(7, 7).iloc[:1500]
    detect.captured.add(july.assign(plane_age=np.where(july["plane_age"] > 10, np.nan, july["plane_age"])))
    identifiers = ["scheduled_at", "carrier", "origin", "dest"]
    artifact, report = detect(examples=flights.examples({"train": july}), min_rows=1000, identifiers=identifiers)
    assert report["row_skew"]["skewed"] == artifact.properties["skewed"] == ["plane_age"]
    age = report["row_skew"]["features"]["plane_age"]
    assert (age["mismatch_count"], age["test_only"]) == (0, 0)
    assert age["base_only"] == artifact.metrics["skewed_rows"] > 100
    assert all(example["training"] > 10 and example["serving"] is None for example in age["examples"])


@pytest.fixture(scope="module")
def spans(flights: Flights) -> dict[str, Artifact]:
    """Statistics of March and of July."""
    results = {}
    for name, month in (("march", 3), ("july", 7)):
        window = [f"2013-{month:02}-01T00:00:00+00:00", f"2013-{month + 1:02}-01T00:00:00+00:00"]
        rows = flights.months(month, month).iloc[::4]
        examples = flights.examples({"train": rows, "eval": rows.iloc[:2000]}, window=window)
        results[name] = flights.run(feature_statistics, examples=examples)
    return results


def test_spans_are_compared_by_schema_drift_comparators(flights: Flights, spans: dict[str, Artifact]) -> None:
    march, july = spans["march"], spans["july"]
    comparators = load_schema(flights.store.local(flights.schema) / SCHEMA_FILE)
    for feature in comparators.feature:
        feature.ClearField("drift_comparator")
        if feature.name == "temp":
            feature.drift_comparator.jensen_shannon_divergence.threshold = 0.3
        if feature.name == "carrier":
            feature.drift_comparator.infinity_norm.threshold = 0.2
    text = str(comparators)
    write = lambda folder: (folder / SCHEMA_FILE).write_text(text)  # noqa: E731
    schema = flights.artifact("schema", write, **flights.schema.properties)
    artifact = flights.run(skew, reference=march, current=july, schema=schema)
    report = flights.read(artifact, "report.json")
    assert (report["verdict"], report["drifted"]) == ("drift", ["temp"])
    assert set(report["features"]) == {"temp", "carrier"}
    assert report["features"]["temp"]["threshold"] == 0.3 < report["features"]["temp"]["score"]
    assert artifact.properties["reference"] == {
        "statistics": march.uri, "schema": schema.uri, "fingerprint": march.fingerprint,
    }  # fmt: skip
    assert artifact.properties["window_end"] == "2013-08-01T00:00:00+00:00"
    assert artifact.properties["current"] == july.uri
    assert report["windows"]["reference"] == ["2013-03-01T00:00:00+00:00", "2013-04-01T00:00:00+00:00"]
    assert (report["attribution"], report["row_skew"]) == (None, None)


@pytest.mark.slow
def test_spans_are_compared_without_schema_except_for_time(flights: Flights, spans: dict[str, Artifact]) -> None:
    def compare(current: Artifact, **params: Any) -> Any:
        return flights.read(flights.run(skew, reference=spans["march"], current=current, **params), "report.json")

    report = compare(spans["july"])
    assert report["verdict"] == "drift"
    assert {"temp", "dewp"} < set(report["drifted"])
    assert set(report["features"]) == {"late", *FEATURES}
    assert compare(spans["march"])["verdict"] == "stable"
    assert compare(spans["july"], split="eval")["rows_current"] == 2000
    named = replace(spans["july"], properties={**spans["july"].properties, "classes": ["late", "on time"]})
    report = compare(named)
    assert set(report["features"]) == set(FEATURES)
    assert report["notes"] == [
        "The label 'late' was not compared: its numbers stand for other classes (no names; late, on time)"
    ]
    with pytest.raises(BadInput, match=r"input 'current' .* is 'schema', expected statistics"):
        compare(flights.schema)
    with pytest.raises(BadInput, match="there are no statistics of split 'newest'; there are train, eval"):
        compare(spans["july"], split="newest")


def test_statistics_recomputed_after_training_are_refused(detect: Detect, flights: Flights, record: str) -> None:
    detect.captured.add(flights.months(7, 7).iloc[:2000])
    store, statistics = flights.store, flights.statistics
    record_text = store.read_text(record)
    value = json.loads(record_text)
    properties = value["champion"]["model"]["properties"]
    try:
        properties["statistics_fingerprint"] = "0123456789abcdef"
        store.write_text(record, json.dumps(value))
        failure = detect.refused("not the statistics that version 3 of 'flights' was trained on", "anew")
        assert statistics.uri in str(failure) and "expected 0123456789ab…" in str(failure)
        properties["statistics_fingerprint"] = statistics.fingerprint
        store.write_text(record, json.dumps(value))
        assert detect(min_rows=100)[0].properties["verdict"] == "drift"
    finally:
        store.write_text(record, record_text)


def test_runs_at_once_compare_each_row_once(detect: Detect, flights: Flights) -> None:
    detect.captured.add(flights.months(1, 1).iloc[:700])
    with ThreadPoolExecutor(3) as threads:
        made = list(threads.map(lambda run: detect(run, min_rows=500), ["at-once-1", "at-once-2", "at-once-3"]))
    assert sorted(artifact.rows["captured"].rows_in for artifact, _ in made) == [0, 0, 700]


@pytest.mark.slow
def test_each_row_is_compared_once(detect: Detect, flights: Flights) -> None:
    artifact, report = detect("none")
    assert (report["verdict"], report["features"], artifact.rows["captured"].rows_in) == ("insufficient", {}, 0)
    assert artifact.properties["window_end"] is None
    january = flights.months(1, 1)
    good = detect.captured.add(january.iloc[:600])
    content = good.read_bytes()
    good.write_bytes(b"not Parquet")
    detect.refused(r"cannot be read: .*; the file is damaged", "first", min_rows=500)
    good.write_bytes(content)
    detect.captured.add(january.iloc[600:1000])
    for _ in ("retried", "cleared"):
        assert detect("first", min_rows=500)[1]["rows_current"] == 600
    # Too few rows wait for more.
    artifact, report = detect("second", min_rows=1000)
    assert (report["verdict"], report["rows_current"], report["min_rows"]) == ("insufficient", 400, 1000)
    assert artifact.properties["window_end"].startswith("2013-01-0")
    detect.captured.add(january.iloc[1000:1700])
    assert detect("third", min_rows=1000)[1]["rows_current"] == 1100
    assert detect("fourth", min_rows=500)[1]["rows_current"] == 0


def test_incompatible_captured_rows_are_refused(detect: Detect, flights: Flights) -> None:
    path = detect.captured.add(flights.months(1, 1).iloc[:600])
    table = pq.read_table(path)
    without_temp = table.drop(["input.temp"])
    as_text = without_temp.append_column("input.temp", pa.array(["warm"] * table.num_rows))
    outputs = [name for name in table.column_names if not name.startswith("input.")]
    for rows, words, params in (
        (without_temp, "there is no column 'input.temp', a feature that the model was trained on", {}),
        (as_text, "column 'input.temp' is string, but the model was trained on FLOAT", {}),
        (table.select(outputs), "--capture_mode=all", {}),
        (table.drop(["input.scheduled_at"]), "there is no column 'input.scheduled_at'", {}),
        (table, "there is no column 'input.flight_id'", {"identifiers": ["flight_id"]}),
    ):
        pq.write_table(rows, path)
        assert str(path) in str(detect.refused(re.escape(words), "refused", min_rows=500, **params))


def test_requests_with_other_features_are_skipped(detect: Detect, flights: Flights) -> None:
    january = flights.months(1, 1)
    other = detect.captured.add(january.iloc[600:1000], version=2)
    pq.write_table(pq.read_table(other).drop(["input.temp"]), other)
    words = r"champion serves, since 2013-04-01.*1 of 1 captured files were"
    detect.refused(words, "silent", silent_after_s=86400.0)
    detect.captured.add(january.iloc[:600])
    artifact, report = detect(min_rows=500)
    assert (artifact.rows["captured"].rows_in, artifact.properties["versions"]) == (600, {"3": 600})
    note = report["notes"][0]
    assert note.startswith("1 of 2 captured files were answered by other versions and left out")
    assert str(other) in note


@pytest.mark.slow
def test_impossible_times_are_reported_and_left_out(detect: Detect, flights: Flights) -> None:
    january = flights.months(1, 1).iloc[:600]
    wrong = january.iloc[:5].assign(scheduled_at=[1_357_000_000_000, 4_000_000_000, 2**62, -(2**62), 253402300799])
    detect.captured.add(january)
    detect.captured.add(wrong)
    artifact, report = detect("few", min_rows=500)
    assert artifact.properties["window_start"] == "2013-01-01T00:00:00+00:00"
    assert artifact.properties["window_end"] < "2013-02-02"
    assert artifact.properties["unwell"] == []
    assert report["rows_current"] == 605
    assert report["notes"][0].startswith("5 of 605 captured rows have a 'scheduled_at' that cannot be, such as 1357")
    detect.captured.add(january.assign(scheduled_at=january["scheduled_at"] * 1000))
    artifact, _ = detect("all", min_rows=500)
    assert (artifact.properties["window_end"], len(artifact.properties["unwell"])) == (None, 1)


def test_monitor_without_requests_gives_no_verdict(detect: Detect, flights: Flights) -> None:
    assert detect("patient")[1]["verdict"] == "insufficient"
    words = r"captured in all the time that its champion serves, since 2013-04-01"
    detect.refused(words, "never", silent_after_s=86400.0)
    detect.captured.add(flights.months(1, 1).iloc[:600])
    assert detect("first", silent_after_s=86400.0, min_rows=500)[1]["verdict"] != "insufficient"
    words = r"captured since 2023-11-14T22:13:20.*longer than silent_after \(1 day, 0:00:00\)"
    detect.refused(words, "silent", silent_after_s=86400.0)


@pytest.fixture
def services(detect: Detect) -> dict[str, str]:
    return {"serving_capture_path": str(detect.captured.path)}


@pytest.fixture
def answers(services: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Answers of a model server by path; ``services`` has its port."""
    values: dict[str, Any] = {}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in values else 404)
            self.end_headers()
            self.wfile.write(json.dumps(values.get(self.path, {"error": "not found"})).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        services["serving_rest_port"] = str(server.server_port)
        yield values
        server.shutdown()


@pytest.mark.parametrize("field", ["serving_rest_port", "serving_port"])
def test_a_server_that_is_down_is_reported_and_fails_the_monitor(
    detect: Detect, services: dict[str, str], flights: Flights, field: str
) -> None:
    with socket.socket() as taken:  # bound, and without a listener
        taken.bind(("127.0.0.1", 0))
        services[field] = str(taken.getsockname()[1])
        artifact, report = detect("patient", services=services)
        (fault,) = artifact.properties["unwell"]
        assert "does not answer" in fault and fault in report["notes"]
        words, down = r"does not answer.*longer than down_after \(1:00:00\), so nothing is watched", 3600.0
        failure = detect.refused(words, "down", HopsError, services=services, down_after_s=down, silent_after_s=86400.0)
        assert failure.retryable
        # Rows that wait for more of them are no sign of life.
        detect.captured.add(flights.months(1, 1).iloc[:600])
        words = r"does not answer.*captured since 2023-11-14"
        detect.refused(words, "waiting", HopsError, services=services, down_after_s=down)
        detect.refused("longer than silent_after", "silent", services=services, silent_after_s=86400.0)
        enough = detect("enough", services=services, down_after_s=down, min_rows=500)[0]
        assert enough.properties["unwell"] == []


def test_a_server_that_cannot_capture_is_reported(
    detect: Detect, answers: dict[str, Any], services: dict[str, str]
) -> None:
    answers["/v1/capture"] = Capture(CaptureOptions()).status()
    detect.refused(r"captures nothing: .* start it with --capture_base_path", "refused", services=services)
    no_version = {"/v1/models/flights": {"model_version_status": []}}
    for number, (others, error, words) in enumerate(
        (
            ({}, {}, "serves no version of model 'flights'"),
            (no_version, {}, "serves no version of model 'flights'"),
            ({}, {"error": "disk full"}, "capture failed: disk full"),
        )
    ):
        answers.clear()
        answers |= {"/v1/capture": {"enabled": True, **error}, **others}
        assert words in detect(f"patient-{number}", services=services)[0].properties["unwell"][0]
        detect.refused("so nothing is watched", "failing", HopsError, services=services, down_after_s=3600.0)


def test_a_clock_in_the_future_is_reported(detect: Detect, flights: Flights) -> None:
    detect.captured.add(flights.months(1, 1).iloc[:600], at_us=4_000_000_000_000_000)
    artifact, report = detect(min_rows=500)
    assert report["notes"][:1] == artifact.properties["unwell"]
    assert "captured at 2096-10-02T07:06:40+00:00, which is in the future" in report["notes"][0]
    assert artifact.properties["window_start"] == "2013-01-01T00:00:00+00:00"


def test_missing_champion_or_capture_path_is_refused(detect: Detect) -> None:
    for params, services, words in (
        ({"model_name": "trains"}, {"serving_capture_path": "/tmp"}, "no champion of model 'trains'"),
        ({}, {"other": ""}, "field 'serving_capture_path' is empty; .* output of IngestOperator as captured"),
        ({"min_rows": 0}, {"other": ""}, "min_rows is 0, expected at least 1"),
    ):
        detect.refused(words, "refused", services=services, **params)
