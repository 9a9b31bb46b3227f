"""The skew stage: captured requests against the training data of the model that serves."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import flights_examples
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_store import s3_endpoint  # noqa: F401

from airflow_hops.hooks.runtime import StepFailed
from airflow_hops.operators.skew import SkewOperator
from airflow_hops.serving.capture.record import CapturedCall
from airflow_hops.serving.capture.tables import CallTables
from airflow_hops.serving.monitoring.stats import RequestKind
from airflow_hops.serving_api import tensors
from airflow_hops.serving_api.protocol import PredictRequest, PredictResponse

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)
ENTRY = "airflow_hops.runtime.skew:run"
INPUTS = [*flights_examples.FEATURES, "scheduled_at"]


@pytest.fixture(scope="module")
def reference(shared_run_step: Any, flights_statistics: Any, flights_schema: Any) -> dict[str, Any]:
    """The record of a champion that was trained on January to March, as deployment writes it."""
    fingerprint = shared_run_step.store.manifest(flights_statistics.uri).fingerprint
    store = shared_run_step.store
    record = {"champion": champion(flights_statistics, flights_schema), "challenger": None, "history": []}
    store.write_text(store.uri("_models", "flights.json"), json.dumps(record))
    return {
        "model": "flights",
        "version": 3,
        "statistics": flights_statistics.uri,
        "schema": flights_schema.uri,
        "fingerprint": fingerprint,
    }


def champion(statistics: Any, schema: Any) -> dict[str, Any]:
    model = {"uri": "file:///model", "kind": "model", "fingerprint": "m", "properties": {"features": INPUTS[:-1]}}
    return {
        "version": 3, "model": model, "statistics": statistics.uri, "schema": schema.uri, "fingerprint": "m",
        "serving_path": "/models/flights/3", "since": "2013-04-01T00:00:00+00:00",
    }  # fmt: skip


@pytest.fixture
def captured(tmp_path: Path) -> Any:
    """The folder of captured requests, and a way to add a file to it as the server writes it."""
    return CaptureFolder(tmp_path / "captured")


class CaptureFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = 0

    def add(self, frame: pd.DataFrame, *, version: int = 3) -> Path:
        """Captures the rows of a frame as one request: missing numbers are NaN, missing strings empty."""
        request, response = PredictRequest(), PredictResponse()
        for name in (name for name in INPUTS if name in frame):
            tensors.fill_proto(request.inputs[name], _as_served(frame[name]))
        tensors.fill_proto(response.outputs["probability"], np.zeros(len(frame), np.float32))
        at_us = 1_700_000_000_000_000 + self._files * 60_000_000
        call = CapturedCall(
            kind=RequestKind("flights", version, "Predict", "GRPC"),
            request_id=f"request-{self._files}",
            at_us=at_us,
            latency_ms=2.0,
            rows=len(frame),
            request=request.SerializeToString(),
            response=response.SerializeToString(),
        )
        tables = CallTables()
        tables.add(call)
        return self.write(tables.groups[0].to_table(), version)

    def write(self, table: pa.Table, version: int = 3) -> Path:
        self._files += 1
        path = self.path / "flights" / f"20231114T2213{self._files:02d}.000000Z-v{version}-17.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        return path


def _as_served(column: pd.Series) -> np.ndarray:
    if pd.api.types.is_float_dtype(column):
        return column.to_numpy(np.float32)
    if pd.api.types.is_integer_dtype(column):
        return column.to_numpy(np.int64)
    return np.array([b"" if pd.isna(value) else value.encode() for value in column], object)


@pytest.fixture
def detect(shared_run_step: Any, warm_launcher: Any, captured: CaptureFolder, reference: Any, tmp_path: Path) -> Any:
    """Runs the skew step over the captured requests; with a cursor of the test's own."""

    def run(
        run_id: str | None = None, *, inputs: Any = None, services: dict[str, str] | None = None, **params: Any
    ) -> Any:
        artifact = shared_run_step(
            ENTRY,
            inputs=inputs,
            params={"model_name": "flights", "time_feature": "scheduled_at", **params},
            kind="skew",
            services=services or {"serving_capture_path": str(captured.path)},
            task_id=f"skew-{tmp_path.name}",
            run_id=run_id,
            launcher=warm_launcher,
        )
        report = json.loads((shared_run_step.store.local(artifact) / "report.json").read_text())
        return artifact, report

    return run


def test_july_has_drifted_from_a_winter(
    detect: Any, captured: CaptureFolder, reference: Any, flights_raw: Path
) -> None:
    july = flights_examples.months(flights_raw, 7, 7).iloc[::4]
    captured.add(july.iloc[:4000])
    captured.add(july.iloc[4000:], version=4)
    artifact, report = detect()
    assert report["verdict"] == "drift"
    assert report["drifted"][:2] == ["temp", "dewp"]
    assert "carrier" not in report["drifted"]
    assert set(report["features"]) == set(flights_examples.FEATURES)
    temp = report["features"]["temp"]
    assert temp["measure"] == "jensen_shannon"
    assert temp["score"] > 0.9 > temp["threshold"] == 0.2
    assert sum(bucket[2] for bucket in temp["histogram_current"]) == pytest.approx(
        len(july) - july["temp"].isna().sum()
    )
    assert report["features"]["dest"]["measure"] == "l_infinity"
    manufacturer = report["features"]["plane_manufacturer"]
    assert manufacturer["missing_current"] == pytest.approx(july["plane_manufacturer"].isna().mean(), abs=1e-6)
    assert report["versions"] == {"3": 4000, "4": len(july) - 4000}
    assert report["rows_current"] == artifact.rows["captured"].rows_in == len(july)
    assert report["rows_reference"] > 15_000
    assert artifact.properties["reference"] == report["reference"] == reference
    assert artifact.properties["drifted"] == report["drifted"]
    assert artifact.properties["scores"]["temp"] == [temp["score"], 0.2]
    # The last flight of July is scheduled after midnight of August in UTC.
    assert artifact.properties["window_end"] == "2013-08-02T00:00:00+00:00"
    assert datetime.fromisoformat(report["captured_from"]) == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert datetime.fromisoformat(report["captured_until"]) == datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC)


def test_what_lies_in_an_object_store_is_compared_as_what_lies_in_a_folder(
    detect: Any,
    captured: CaptureFolder,
    flights_raw: Path,
    s3_endpoint: str,  # noqa: F811
) -> None:
    import s3fs

    july = flights_examples.months(flights_raw, 7, 7).iloc[::6]
    first, second = captured.add(july.iloc[:3000]), captured.add(july.iloc[3000:])
    _, expected = detect("local", min_rows=1000)
    fs = s3fs.S3FileSystem(endpoint_url=s3_endpoint, use_listings_cache=False)
    fs.mkdir("captured-flights")

    def put(content: bytes, time: str) -> str:
        path = f"captured-flights/server 1/flights/{time}.000000Z-v3-17.parquet"
        fs.pipe_file(path, content)
        return path

    services = {
        "serving_capture_path": "s3://captured-flights/server 1/",
        "serving_storage_options": json.dumps({"endpoint_url": s3_endpoint}),
    }
    assert detect("nothing-yet", min_rows=1000, services=services)[1]["verdict"] == "insufficient"
    put(first.read_bytes(), "20240101T000000")
    put(second.read_bytes(), "20240101T000001")
    fs.pipe_file("captured-flights/server 1/flights/_feedback/20240101T000002.000000Z-labels.parquet", b"labels")
    _, report = detect("both", min_rows=1000, services=services)
    assert report["verdict"] == expected["verdict"] == "drift"
    for name in ("features", "versions", "rows_current", "captured_until"):
        assert report[name] == expected[name]
    # The next run begins behind what the last one saw.
    put(first.read_bytes(), "20240101T000003")
    assert detect("the-third", min_rows=1000, services=services)[1]["rows_current"] == 3000
    broken = put(first.read_bytes()[:-100], "20240101T000004")
    with pytest.raises(StepFailed, match=f"s3://{broken}: cannot be read as Parquet"):
        detect("the-fourth", min_rows=1000, services=services)
    services["serving_storage_options"] = json.dumps(
        {"endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 0}}}
    )
    with pytest.raises(StepFailed, match="s3://captured-flights/server 1/flights: cannot be read: ") as failure:
        detect("away", min_rows=1000, services=services)
    assert failure.value.retryable
    with pytest.raises(StepFailed, match="'serving_capture_path' is 'hsss://bucket': Protocol not known: hsss"):
        detect("unknown", services={"serving_capture_path": "hsss://bucket"})


@pytest.fixture
def champion_with_model(shared_run_step: Any, warm_launcher: Any, reference: Any) -> Any:
    """A champion whose model can be loaded: it says 0.5 at 40 °F, and 0.005 more for each degree."""
    model = shared_run_step(
        "skew_row_checks:write_temperature_model", code_paths=CHECKS, launcher=warm_launcher, kind="model"
    )
    store = shared_run_step.store
    address = store.uri("_models", "flights.json")
    before = store.read_text(address)
    record = json.loads(before)
    record["champion"]["model"] = {**model.to_dict(), "properties": {"features": INPUTS[:-1]}}
    store.write_text(address, json.dumps(record))
    yield model
    store.write_text(address, before)


def test_a_drift_is_followed_up_to_the_predictions(
    detect: Any, captured: CaptureFolder, champion_with_model: Any, flights_raw: Path, shared_run_step: Any
) -> None:
    july, winter = (flights_examples.months(flights_raw, *months) for months in ((7, 7), (1, 3)))
    captured.add(july.iloc[::6])
    artifact, report = detect(min_rows=1000)
    assert report["verdict"] == artifact.properties["verdict"] == "drift"
    assert report["notes"] == []
    warmer = july["temp"].mean() - winter["temp"].mean()
    found = report["attribution"]["effects"]["temp"]
    assert found["effect"] == pytest.approx(found["effect_signed"]) == pytest.approx(0.005 * warmer, rel=0.1)
    assert report["features"]["temp"]["effect"] == found["effect"] == artifact.properties["effects"]["temp"]
    shift = report["attribution"]["prediction_current"] - report["attribution"]["prediction_reference"]
    assert shift == pytest.approx(0.005 * warmer, rel=0.1)
    # The model takes nothing else, whatever else has moved.
    assert set(report["attribution"]["effects"]) == {"temp"}
    picture = (shared_run_step.store.local(artifact) / "report.svg").read_text()
    assert "temp: covariate_shift" in picture and "<polyline" in picture
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert artifact.properties["causes"]["temp"] == "covariate_shift"


def test_a_model_that_is_gone_leaves_a_note_and_the_report_stands(
    detect: Any, captured: CaptureFolder, flights_raw: Path
) -> None:
    captured.add(flights_examples.months(flights_raw, 7, 7).iloc[::6])
    _, report = detect(min_rows=1000)
    assert report["verdict"] == "drift"
    assert report["attribution"] is None
    assert report["features"]["temp"]["effect"] is None
    assert "Effects on predictions are not known: " in report["notes"][0] and "file:///model" in report["notes"][0]
    assert detect(min_rows=1000, attribute=False)[1]["notes"] == []


def test_rows_that_were_served_otherwise_than_they_were_learnt_are_found_by_their_identifiers(
    detect: Any, captured: CaptureFolder, champion_with_model: Any, flights_raw: Path, shared_run_step: Any
) -> None:
    winter = flights_examples.months(flights_raw, 1, 3)
    learnt = winter[winter.index % 4 == 0]
    served = winter.assign(temp=(winter["temp"] - 32) / 1.8, carrier=winter["carrier"].str.lower())
    captured.add(served[winter.index % 4 == 0].iloc[:9000])
    captured.add(served[winter.index % 4 == 0].iloc[9000:])
    captured.add(served[winter.index % 4 == 1].iloc[:1000])
    artifact, report = detect(identifiers=["scheduled_at", "origin", "dest", "plane_seats", "scheduled_arrival_minute"])
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
        assert set(example["identifier"]) == {
            "scheduled_at", "origin", "dest", "plane_seats", "scheduled_arrival_minute",
        }  # fmt: skip
    for example in rows["features"]["carrier"]["examples"]:
        assert example["serving"] == example["training"].lower()
    assert report["verdict"] == "pipeline_fault"
    assert artifact.properties["causes"]["temp"] == "unit_change"
    assert artifact.properties["causes"]["carrier"] == "new_category"
    picture = (shared_run_step.store.local(artifact) / "report.svg").read_text()
    assert "carrier: new_category" in picture
    assert ">UA</text>" in picture and ">ua</text>" in picture


def test_rows_are_compared_with_examples_that_were_given(
    detect: Any, captured: CaptureFolder, flights_raw: Path, shared_run_step: Any
) -> None:
    july = flights_examples.months(flights_raw, 7, 7).iloc[:1500]
    captured.add(july.assign(plane_age=np.where(july["plane_age"] > 10, np.nan, july["plane_age"])))
    examples = flights_examples.write_examples(shared_run_step.store, {"train": july}, run_id="july-afterwards")
    artifact, report = detect(
        inputs={"examples": examples}, min_rows=1000, identifiers=["scheduled_at", "carrier", "origin", "dest"]
    )
    assert report["row_skew"]["skewed"] == artifact.properties["skewed"] == ["plane_age"]
    age = report["row_skew"]["features"]["plane_age"]
    assert (age["mismatch_count"], age["test_only"]) == (0, 0)
    assert age["base_only"] == artifact.metrics["skewed_rows"] > 100
    assert all(example["training"] > 10 and example["serving"] is None for example in age["examples"])


def test_an_identifier_that_was_not_captured_is_named(detect: Any, captured: CaptureFolder, flights_raw: Path) -> None:
    path = captured.add(flights_examples.months(flights_raw, 1, 1).iloc[:600])
    with pytest.raises(StepFailed, match=r"there is no column 'input.flight_id'") as failure:
        detect(min_rows=500, identifiers=["flight_id"])
    assert str(path) in str(failure.value)
    assert not failure.value.retryable


@pytest.fixture(scope="module")
def spans(shared_run_step: Any, warm_launcher: Any, flights_raw: Path) -> dict[str, Any]:
    """Statistics of spans: March, July, and March with its temperatures in degrees Celsius."""

    def statistics(name: str, month: int, *, celsius: bool = False) -> Any:
        window = [f"2013-{month:02}-01T00:00:00+00:00", f"2013-{month + 1:02}-01T00:00:00+00:00"]
        rows = flights_examples.months(flights_raw, month, month).iloc[::4]
        if celsius:
            rows = rows.assign(temp=(rows["temp"] - 32) / 1.8)
        examples = flights_examples.write_examples(
            shared_run_step.store, {"train": rows, "eval": rows.iloc[:2000]}, run_id=name, window=window
        )
        return shared_run_step(
            "airflow_hops.runtime.statistics:run", inputs={"examples": examples}, kind="statistics",
            launcher=warm_launcher, task_id=f"statistics-{name}",
        )  # fmt: skip

    return {
        "march": statistics("march", 3),
        "july": statistics("july", 7),
        "celsius": statistics("celsius", 3, celsius=True),
    }


@pytest.fixture
def drift(shared_run_step: Any, warm_launcher: Any, spans: dict[str, Any]) -> Any:
    """Runs the step over two statistics."""

    def run(reference: Any, current: Any, schema: Any = None, **params: Any) -> Any:
        inputs = {"reference": reference, "current": current, **({"schema": schema} if schema else {})}
        artifact = shared_run_step(
            ENTRY, params=params, inputs=inputs, kind="skew", task_id="drift", launcher=warm_launcher
        )
        return artifact, json.loads((shared_run_step.store.local(artifact) / "report.json").read_text())

    return run


def test_spans_have_drifted_by_the_schemas_drift_comparators(
    drift: Any, spans: dict[str, Any], shared_run_step: Any, warm_launcher: Any, flights_schema: Any
) -> None:
    schema = shared_run_step(
        "skew_row_checks:write_drift_schema", inputs={"schema": flights_schema}, kind="schema",
        code_paths=CHECKS, launcher=warm_launcher,
    )  # fmt: skip
    artifact, report = drift(spans["march"], spans["july"], schema)
    assert (report["verdict"], report["drifted"]) == ("drift", ["temp"])
    assert set(report["features"]) == {"temp", "carrier"}
    assert report["features"]["temp"]["threshold"] == 0.3 < report["features"]["temp"]["score"]
    assert artifact.properties["reference"] == {
        "statistics": spans["march"].uri, "schema": schema.uri, "fingerprint": spans["march"].fingerprint,
    }  # fmt: skip
    assert artifact.properties["window_end"] == "2013-08-01T00:00:00+00:00"
    assert artifact.properties["current"] == spans["july"].uri
    assert report["windows"]["reference"] == ["2013-03-01T00:00:00+00:00", "2013-04-01T00:00:00+00:00"]
    assert (report["attribution"], report["row_skew"]) == (None, None)


def test_spans_are_compared_without_a_schema_the_time_aside(drift: Any, spans: dict[str, Any]) -> None:
    _, report = drift(spans["march"], spans["july"])
    assert report["verdict"] == "drift"
    assert {"temp", "dewp"} < set(report["drifted"])
    assert set(report["features"]) == {"late", *flights_examples.FEATURES}
    assert drift(spans["march"], spans["march"])[1]["verdict"] == "stable"
    assert drift(spans["march"], spans["july"], split="eval")[1]["rows_current"] == 2000


def test_what_is_no_statistics_or_lacks_the_split_is_named(
    drift: Any, spans: dict[str, Any], flights_schema: Any
) -> None:
    with pytest.raises(StepFailed, match=r"input 'current' .* is 'schema', expected statistics"):
        drift(spans["march"], flights_schema)
    with pytest.raises(StepFailed, match="there are no statistics of split 'newest'; there are train, eval"):
        drift(spans["march"], spans["july"], split="newest")


def test_drift_dag_asks_for_a_retraining_but_not_where_the_pipeline_is_broken(
    run_dag: Any,
    shared_run_step: Any,
    spans: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    extra = {"store": shared_run_step.store.root}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))

    def states(current: str) -> dict[str, str]:
        conf = {"reference": spans["march"].to_dict(), "current": spans[current].to_dict()}
        return {ti.task_id: str(ti.state) for ti in run_dag("drift_between_spans", conf).get_task_instances()}

    # Before any request, so that no cooldown can be what keeps it from asking.
    assert states("celsius") == {"drift": "success", "request": "skipped"}
    output = capfd.readouterr()
    assert "the verdict is 'pipeline_fault': temp (unit_change); mend what feeds the model" in output.out + output.err
    assert states("july") == {"drift": "success", "request": "success"}
    assert states("march") == {"drift": "success", "request": "skipped"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "expected either model_name, or both reference and current"),
        ({"reference": {}}, "expected either model_name, or both reference and current"),
        ({"model_name": "m", "reference": {}, "current": {}}, "expected either model_name, or both"),
        ({"model_name": "m", "schema": {}}, "schema goes with reference and current"),
        ({"reference": {}, "current": {}, "identifiers": ["id"]}, "identifiers, examples and time_feature go with"),
        ({"model_name": "m", "examples": {}}, "examples needs identifiers"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SkewOperator(task_id="skew", **arguments)


def test_other_flights_of_the_same_months_are_stable(detect: Any, captured: CaptureFolder, flights_raw: Path) -> None:
    winter = flights_examples.months(flights_raw, 1, 3)
    captured.add(winter[winter.index % 4 == 2])
    artifact, report = detect()
    assert report["verdict"] == artifact.properties["verdict"] == "stable"
    assert report["drifted"] == []
    assert max(skew["score"] / skew["threshold"] for skew in report["features"].values()) < 0.7


def test_missing_values_are_judged_apart_and_are_no_drift_of_the_values(
    shared_run_step: Any, warm_launcher: Any
) -> None:
    reports = shared_run_step("tfdv_checks:nan_against_itself", code_paths=CHECKS, launcher=warm_launcher)
    for name in ("x", "s"):
        same = reports["holes_to_holes"]["features"][name]
        assert same["score"] == 0
        assert same["missing_reference"] == same["missing_current"] == pytest.approx(0.5, abs=0.02)
        half = reports["whole_to_holes"]["features"][name]
        assert half["score"] < 0.02
        assert (half["missing_reference"], half["cause"]) == (0, "missing_rate")
        gone = reports["whole_to_gone"]["features"][name]
        assert (gone["score"], gone["cause"], gone["missing_current"]) == (None, "all_missing", 1.0)
        assert name in reports["whole_to_gone"]["lost"]
    assert {name: report["verdict"] for name, report in reports.items()} == {
        "holes_to_holes": "stable",
        "whole_to_holes": "drift",
        "whole_to_gone": "pipeline_fault",
        "few": "insufficient",
    }


def test_statistics_that_were_made_anew_since_the_training_are_refused(
    shared_run_step: Any, detect: Any, captured: CaptureFolder, reference: Any, flights_raw: Path
) -> None:
    captured.add(flights_examples.months(flights_raw, 7, 7).iloc[:2000])
    store = shared_run_step.store
    address = store.uri("_models", "flights.json")
    before = store.read_text(address)
    record = json.loads(before)
    record["champion"]["model"]["properties"]["statistics_fingerprint"] = "0123456789abcdef"
    store.write_text(address, json.dumps(record))
    try:
        with pytest.raises(
            StepFailed, match="not the statistics that version 3 of 'flights' was trained on"
        ) as failure:
            detect()
        assert reference["statistics"] in str(failure.value) and "expected 0123456789ab…" in str(failure.value)
        assert not failure.value.retryable
        assert not store.exists(shared_run_step.last_uri)
        record["champion"]["model"]["properties"]["statistics_fingerprint"] = reference["fingerprint"]
        store.write_text(address, json.dumps(record))
        assert detect(min_rows=100)[0].properties["verdict"] == "drift"
    finally:
        store.write_text(address, before)


def test_each_row_is_looked_at_once_and_a_retry_sees_the_same_rows(
    detect: Any, captured: CaptureFolder, flights_raw: Path
) -> None:
    january = flights_examples.months(flights_raw, 1, 1)
    captured.add(january.iloc[:600])
    assert detect("first", min_rows=500)[1]["rows_current"] == 600
    captured.add(january.iloc[600:1300])
    assert detect("first", min_rows=500)[1]["rows_current"] == 600  # the run was cleared
    assert detect("second", min_rows=500)[1]["rows_current"] == 700
    assert detect("third", min_rows=500)[1]["rows_current"] == 0


def test_a_failed_try_does_not_move_the_cursor_and_its_retry_sees_the_same_rows(
    detect: Any, captured: CaptureFolder, flights_raw: Path
) -> None:
    january = flights_examples.months(flights_raw, 1, 1)
    good = captured.add(january.iloc[:600])
    content = good.read_bytes()
    good.write_bytes(b"not Parquet")
    with pytest.raises(StepFailed):
        detect("first", min_rows=500)
    good.write_bytes(content)
    captured.add(january.iloc[600:1300])
    assert detect("first", min_rows=500)[1]["rows_current"] == 600
    assert detect("second", min_rows=500)[1]["rows_current"] == 700


def test_too_few_rows_wait_for_more(detect: Any, captured: CaptureFolder, flights_raw: Path) -> None:
    january = flights_examples.months(flights_raw, 1, 1)
    captured.add(january.iloc[:400])
    artifact, report = detect("first", min_rows=1000)
    assert (report["verdict"], report["rows_current"], report["min_rows"]) == ("insufficient", 400, 1000)
    assert artifact.properties["window_end"] == "2013-01-02T00:00:00+00:00"
    captured.add(january.iloc[400:1100])
    assert detect("second", min_rows=1000)[1]["rows_current"] == 1100


def test_no_captured_rows_are_no_error(detect: Any, captured: CaptureFolder) -> None:
    artifact, report = detect()
    assert report["verdict"] == "insufficient"
    assert report["features"] == {}
    assert artifact.properties["window_end"] is None
    assert artifact.rows["captured"].rows_in == 0


def test_columns_in_another_order_make_no_difference(detect: Any, captured: CaptureFolder, flights_raw: Path) -> None:
    january = flights_examples.months(flights_raw, 1, 1).iloc[:800]
    table = pq.read_table(captured.add(january))
    straight = detect("first", min_rows=500)[1]
    captured.write(table.select(list(reversed(table.column_names))))
    turned = detect("second", min_rows=500)[1]
    assert turned["features"] == straight["features"]
    assert turned["window_end"] == straight["window_end"]


def _without_temp(table: pa.Table) -> pa.Table:
    return table.drop_columns(["input.temp"])


def _temp_as_text(table: pa.Table) -> pa.Table:
    index = table.column_names.index("input.temp")
    return table.set_column(index, "input.temp", pa.array(["warm"] * table.num_rows))


def _without_inputs(table: pa.Table) -> pa.Table:
    return table.select([name for name in table.column_names if not name.startswith("input.")])


def _without_time(table: pa.Table) -> pa.Table:
    return table.drop_columns(["input.scheduled_at"])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_without_temp, "there is no column 'input.temp', a feature that the model was trained on"),
        (_temp_as_text, "column 'input.temp' is string, but the model was trained on FLOAT"),
        (_without_inputs, "--capture_mode=all"),
        (_without_time, "there is no column 'input.scheduled_at'"),
    ],
)
def test_captured_rows_that_do_not_fit_give_a_clear_error_and_no_artifact(
    detect: Any, captured: CaptureFolder, flights_raw: Path, shared_run_step: Any, damage: Any, words: str
) -> None:
    path = captured.add(flights_examples.months(flights_raw, 1, 1).iloc[:600])
    pq.write_table(damage(pq.read_table(path)), path)
    with pytest.raises(StepFailed) as failure:
        detect(min_rows=500)
    assert str(path) in str(failure.value)
    assert words in str(failure.value)
    assert not failure.value.retryable
    assert not shared_run_step.store.exists(shared_run_step.last_uri)


def test_a_model_that_nobody_deployed_and_a_missing_capture_path_are_named(
    shared_run_step: Any, warm_launcher: Any, reference: Any
) -> None:
    step = {"kind": "skew", "launcher": warm_launcher}
    with pytest.raises(StepFailed, match="no champion of model 'trains'"):
        shared_run_step(ENTRY, params={"model_name": "trains"}, services={"serving_capture_path": "/tmp"}, **step)
    with pytest.raises(StepFailed, match="field 'serving_capture_path' is empty"):
        shared_run_step(ENTRY, params={"model_name": "flights"}, **step)
    with pytest.raises(StepFailed, match="min_rows is 0, expected at least 1"):
        shared_run_step(ENTRY, params={"model_name": "flights", "min_rows": 0}, **step)


def test_monitoring_dag_asks_for_a_retraining_once(
    run_dag: Any,
    shared_run_step: Any,
    reference: Any,
    captured: CaptureFolder,
    flights_raw: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extra = {"store": shared_run_step.store.root, "serving_capture_path": str(captured.path)}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))

    def states(model_name: str = "flights") -> dict[str, str]:
        run = run_dag("monitoring", {"model_name": model_name})
        return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}

    assert states("trains") == {"skew": "skipped", "request": "skipped"}  # nothing serves
    captured.add(flights_examples.months(flights_raw, 7, 7).iloc[:1000])
    assert states() == {"skew": "success", "request": "success"}
    captured.add(flights_examples.months(flights_raw, 8, 8).iloc[:1000])
    assert states() == {"skew": "success", "request": "skipped"}  # the cooldown
