"""Performance of served predictions, once their labels have come."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from campaigns import campaign
from echo_models import write_function
from scipy import stats

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.artifacts.target import MULTICLASS
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.metrics import worse_by
from airflow_hops.core.performance import PerformanceOptions, PerformanceReport
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.captured.values import class_numbers
from airflow_hops.ml.metrics.judging import Judge
from airflow_hops.ml.metrics.scoring import ScoredModel
from airflow_hops.ml.performance import stage
from airflow_hops.ml.performance.figures import estimate, find_calibration, measure
from airflow_hops.ml.performance.labels import as_time, key_of, plain
from airflow_hops.ml.performance.versions import find_version, with_baseline
from airflow_hops.serving.capture.record import CapturedLabel
from tests.ml.world import Flights

DAY = 86_400
START = 1_364_774_400  # 2013-04-01
ROWS, DAYS = 400, 10
KEYS = ["flight", "scheduled_at"]
MORE = {"minutes": {"problem": "regression"}}
TARGET = {"label": "late", "problem": "binary", "more_labels": MORE}


def true_probability(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def drawn(rows: int, seed: int, *, turned: bool = False) -> pd.DataFrame:
    """Rows whose label has the probability that the model says; turned, the opposite one."""
    random = np.random.default_rng(seed)
    x = random.normal(size=rows).astype(np.float32)
    p = true_probability(-x if turned else x)
    late = (random.random(rows) < p).astype(np.int64)
    return pd.DataFrame({"x": x, "late": late, "minutes": 10.0 * x + random.normal(0, 5, rows)})


def write_model(world: Flights, examples: Artifact) -> Artifact:
    """Writes a model of examples that says the true probability."""
    serve = lambda x: {"probability": tf.sigmoid(x), "minutes_prediction": 10 * x}  # noqa: E731
    return world.model(
        lambda folder: write_function(folder, serve, x=tf.float32),
        made_from={"examples": [examples]}, signature="serving_default", **TARGET,
    )  # fmt: skip


@pytest.fixture(scope="module")
def champion(flights: Flights) -> Artifact:
    """A model that is right about the probabilities of its training."""
    splits = {"train": drawn(10, 1), "eval": drawn(4000, 2)}
    return write_model(flights, flights.examples(splits, key=None, time=None, more_labels=MORE))


@pytest.fixture
def deployed(flights: Flights, champion: Artifact) -> ArtifactStore:
    """A store with the champion as version 3, whose record other tests replace."""
    for name in ("flights", "unasked"):
        flights.deploy(champion, name, version=3)
    return flights.store


class Served:
    """Ten days of requests, one a day, with the labels to come."""

    def __init__(self, world: Flights, *, turned_from: int = DAYS) -> None:
        self.world, self.captured = world, world.captured()
        self.files, days = [], []
        for day in range(DAYS):
            rows = drawn(ROWS, 10 + day, turned=day >= turned_from)
            rows["scheduled_at"] = START + day * DAY + np.arange(ROWS)
            rows["flight"] = [f"AA{number}" for number in range(ROWS)]
            rows["request_id"], rows["row"] = f"request-{day}", np.arange(ROWS)
            rows["known_at"] = rows["scheduled_at"] + DAY // 2
            inputs = {
                "x": rows["x"].to_numpy(),
                "scheduled_at": rows["scheduled_at"].to_numpy(np.int64),
                "flight": np.array([name.encode() for name in rows["flight"]], object),
            }
            # A version may be exported anew with outputs of another type.
            precision = np.float64 if day % 2 else np.float32
            outputs = {"probability": true_probability(rows["x"].to_numpy()).astype(precision)}
            if day < 8:  # version 3
                outputs["minutes_prediction"] = 10 * rows["x"].to_numpy()
            at_us = (START + day * DAY) * 1_000_000
            self.files.append(self.captured.answer(inputs, outputs, version=3 + day // 8, at_us=at_us))
            days.append(rows)
        self.rows = pd.concat(days, ignore_index=True)

    def measured(self, labels: pd.DataFrame | None = None, **values: Any) -> PerformanceReport:
        """Runs the stage with labels from a file or an artifact; None for the server's feedback."""
        if labels is not None:
            path = self.world.folder / f"{self.captured.path.name}-labels.parquet"
            pq.write_table(pa.Table.from_pandas(labels, preserve_index=False), path)
            source = {"source": {"uri": str(path)}, "keys": KEYS, "label_time": "known_at"}
            values = {**source, "time_feature": "scheduled_at", **values}
        services = {"serving_capture_path": "" if "captured" in values else str(self.captured.path)}
        artifact = self.world.run(stage, services=services, **{"model_name": "flights", **values})
        report = PerformanceReport.from_dict(self.world.read(artifact, "performance.json"))
        assert artifact.properties == report.properties.to_dict()
        return report


@pytest.fixture
def serve(flights: Flights, deployed: ArtifactStore) -> Callable[..., Served]:
    return functools.partial(Served, flights)


def test_predictions_are_measured_by_version_and_period(serve: Callable[..., Served]) -> None:
    served = serve()
    report = served.measured(served.rows, window_s=5 * DAY, period_s=2 * DAY)
    assert report.captured_files == (served.files[5].name, served.files[9].name)
    assert (report.problem, report.metric, report.label) == ("binary", "auc", "late")
    assert report.as_of == "2013-04-10T00:06:40+00:00"
    whole = served.rows[served.rows["scheduled_at"] >= START + 9 * DAY + ROWS - 5 * DAY]
    third, fourth = report.versions
    assert (third.version, third.rows, third.labelled) == (3, 3 * ROWS, 3 * ROWS)
    # The labels of the last day came after the newest prediction, which is the present.
    assert (fourth.version, fourth.rows, fourth.labelled, fourth.baseline) == (4, 2 * ROWS, ROWS, {})
    assert report.labels.future == ROWS
    # A period is aligned to the epoch, not to the window.
    assert [(each.version, each.start[:10], each.rows) for each in report.periods] == [
        (3, "2013-04-05", ROWS), (3, "2013-04-07", 2 * ROWS), (4, "2013-04-09", 2 * ROWS),
    ]  # fmt: skip
    mine = whole[whole["scheduled_at"] < START + 8 * DAY]
    right = ((mine["x"] >= 0) == (mine["late"] == 1)).mean()
    value, low, high = third.figures["accuracy"]
    assert value == pytest.approx(right) and low < value < high and high - low == pytest.approx(0.05, abs=0.01)
    # Nothing has changed: what is measured, estimated and known from training agrees.
    assert third.baseline is not None and third.drop is not None
    for name, (drop, low, high) in third.drop.items():
        assert low < 0 < high and abs(drop) < 0.06, name
        estimated, measured = third.estimates[name], third.figures[name]
        assert estimated[1] < measured[0] < estimated[2] and measured[1] < estimated[0] < measured[2], name
    assert report.delay_s == (DAY / 2, DAY / 2)
    (why,) = [note for note in report.notes if "version 4" in note]
    assert "has no baseline and no estimates" in why
    assert served.measured(served.rows, estimates=False).versions[0].estimates == {}


def test_each_label_is_measured_separately(serve: Callable[..., Served]) -> None:
    served = serve()
    report = served.measured(served.rows, label="minutes")
    assert (report.problem, report.metric, report.label) == ("regression", "rmse", "minutes")
    (third,) = report.versions
    value, low, high = third.figures["rmse"]
    assert low < 5 < high and value == pytest.approx(5, abs=0.3)
    assert third.baseline is not None and third.baseline["rmse"][0] == pytest.approx(5, abs=0.3)
    assert any("without 'output.minutes_prediction'" in note for note in report.notes)  # of version 4
    with pytest.raises(BadInput, match="of_label is 'gate'; the champion predicts 'late', 'minutes'"):
        served.measured(served.rows, label="gate")


def test_measurements_report_concept_drift_missed_by_estimates(serve: Callable[..., Served]) -> None:
    served = serve(turned_from=4)
    report = served.measured(served.rows, as_of="2013-04-08T00:00:00", window_s=3 * DAY)
    (third,) = report.versions
    assert third.figures["auc"][0] < 0.35 < 0.65 < third.estimates["auc"][0]
    assert third.drop is not None and third.drop["auc"][1] > 0.3
    assert any("Estimates of version 3 are off: auc" in note for note in report.notes)


@pytest.mark.slow
def test_missing_labels_are_reported_by_age_of_predictions(serve: Callable[..., Served]) -> None:
    served = serve()
    came = served.rows["scheduled_at"] < START + 6 * DAY
    labels = served.rows[came | (served.rows.index % 2 == 0)]
    report = served.measured(labels, as_of="2013-04-09T00:00:00Z", ages_s=(DAY, 3 * DAY))
    # Of the last two days every other label has come; a row of midnight is older than a day.
    assert [(each.from_s, each.to_s, each.rows, each.labelled) for each in report.ages] == [
        (0, DAY, ROWS - 1, ROWS // 2 - 1), (DAY, 3 * DAY, 2 * ROWS, ROWS * 3 // 2),
        (3 * DAY, None, 5 * ROWS + 1, 5 * ROWS + 1),
    ]  # fmt: skip
    (third,) = report.versions
    assert third.measured == third.labelled == 7 * ROWS
    waited = served.measured(labels, as_of="2013-04-09T00:00:00Z", label_delay_s=2.5 * DAY).versions[0]
    assert (waited.labelled, waited.measured) == (third.labelled, 6 * ROWS)
    # What was not known then is not used, as if it had been looked at then.
    early = served.measured(served.rows, as_of="2013-04-05T00:00:00Z")
    assert early.labels.future == 6 * ROWS
    assert early.versions[0].rows == early.versions[0].labelled == 4 * ROWS


@pytest.mark.slow
def test_labels_that_stop_coming_are_noticed(serve: Callable[..., Served]) -> None:
    served = serve()
    report = served.measured(served.rows[served.rows["scheduled_at"] < START + 5 * DAY])
    (note,) = [note for note in report.notes if note.startswith("Labels have stopped")]
    assert f"none of {3 * ROWS} predictions from 2013-04-06 00:00" in note
    assert "95% of those that came did within 12 hours" in note
    came = served.rows[served.rows["scheduled_at"] < START + 5 * DAY]
    for options, words in (
        ({"ages_s": (3 * DAY,)}, "the greatest of ages is 72 hours"),
        ({"label_delay_s": 1.5 * DAY}, "label_delay is 36 hours"),
        ({}, ""),
    ):
        (note,) = served.measured(came, label_time=None, estimates=False, **options).unwell or ("",)
        assert note.endswith(words) and bool(note) == bool(words)
    (note,) = served.measured(came, label_time="scheduled_at", estimates=False).unwell  # known at once
    assert "95% of those that came did within 0 hours" in note
    none = served.measured()
    assert none.notes[0] == "No label of a prediction in the window has come: nothing is measured"
    assert none.versions[0].figures == {} and none.versions[0].estimates["auc"][0] > 0.65


def test_last_label_counts_and_contradictions_are_reported(serve: Callable[..., Served]) -> None:
    served = serve()
    turned, keyless = served.rows.assign(late=1 - served.rows["late"]), served.rows.iloc[60:66].assign(flight=None)
    corrected, contradicted, repeated = turned.iloc[:7], turned.iloc[10:15], served.rows.iloc[20:23]
    unknown = served.rows.iloc[30:34].assign(flight="nobody's")
    future = served.rows.iloc[40:42].assign(known_at=int(datetime(2999, 1, 1, tzinfo=UTC).timestamp()))
    values = [
        keyless, corrected.assign(known_at=corrected["known_at"] + 1), contradicted, repeated, unknown, future,
        served.rows.assign(late=served.rows["late"].where(served.rows.index != 50, 7)),
    ]  # fmt: skip
    report = served.measured(pd.concat(values), as_of="2013-04-11T00:00:00Z")
    counts = report.labels
    assert (counts.given, counts.future, counts.unknown) == (DAYS * ROWS + 19, 2, 4)
    assert (counts.corrected, counts.contradictory, counts.repeated, counts.invalid) == (7, 5, 3, 1)
    assert counts.joined == DAYS * ROWS - 5
    assert sum(each.labelled for each in report.versions) == DAYS * ROWS - 6
    expected = pd.concat([turned.iloc[:7], served.rows.iloc[7:]]).drop(index=[*range(10, 15), 50])
    mine = expected[expected["scheduled_at"] < START + 8 * DAY]
    right = ((mine["x"] >= 0) == (mine["late"] == 1)).mean()
    assert report.versions[0].figures["accuracy"][0] == pytest.approx(right)
    notes = " ".join(report.notes)
    assert counts.keyless == 6 and "Labels without a value of flight or scheduled_at, their keys: 6; left out" in notes
    assert "contradict each other and became known at the same time: 5" in notes
    assert "or in the future: 2; left out" in notes and "not what the model predicts: 1; left out" in notes


def test_one_clients_wrong_time_moves_neither_the_window_nor_the_present(serve: Callable[..., Served]) -> None:
    served = serve()
    expected = served.measured(served.rows, window_s=5 * DAY)
    # A time of 2099, one in milliseconds, and one beyond all calendars.
    wrong = [4_070_908_800, START * 1000, 10**15]
    for seconds in wrong:
        inputs = {"x": [0.0], "scheduled_at": [seconds], "flight": [b"AA1"]}
        arrays = {name: np.array(values, np.float32 if name == "x" else None) for name, values in inputs.items()}
        served.captured.answer(
            arrays, {"probability": np.array([0.5], np.float32)}, at_us=(START + 9 * DAY) * 1_000_000
        )
    report = served.measured(served.rows, window_s=5 * DAY)
    assert (report.as_of, report.versions) == (expected.as_of, expected.versions)
    notes = " ".join(report.notes)
    assert "own time is more than a day after their request: 1" in notes
    assert "'scheduled_at' is not a time in seconds since the epoch: 2; left out" in notes
    for file in served.files:
        file.unlink()
    assert served.measured(served.rows, window_s=None, as_of="2100-01-01").versions[0].rows == 1


def test_one_label_of_another_type_or_version_does_not_end_the_measurement(serve: Callable[..., Served]) -> None:
    served = serve()
    us = START * 1_000_000
    rows = served.rows[served.rows["scheduled_at"] < START + 8 * DAY]
    labels = [
        CapturedLabel("flights", row.request_id, row.row, {"late": float(row.late)}, us, us)
        for row in rows.itertuples()
    ]
    served.captured.label(labels)
    expected = served.measured().versions[0]
    served.captured.label([CapturedLabel("flights", "request-8", 0, {"late": "x"}, us, us)])
    report = served.measured()
    assert report.versions[0] == expected and (expected.labelled, report.labels.invalid) == (8 * ROWS, 1)
    assert [each.labelled for each in report.versions] == [8 * ROWS, 0]
    for file in (served.captured.path / "flights" / "_feedback").iterdir():
        file.unlink()
    served.captured.label([CapturedLabel("flights", "request-0", 0, {"cancelled": 1.0}, us, us)])
    with pytest.raises(BadInput, match="no label of the feedback is called 'late'; there are 'cancelled'"):
        served.measured()


@pytest.mark.slow
def test_keyless_rows_and_ambiguous_labels_are_reported(serve: Callable[..., Served]) -> None:
    served = serve()
    expected = served.measured(served.rows)
    inputs = {"x": np.zeros(3, np.float32), "scheduled_at": np.full(3, START - 300 * DAY)}
    at_us = (START - 300 * DAY) * 1_000_000
    served.captured.answer(inputs, {"probability": np.full(3, 0.5, np.float32)}, version=2, at_us=at_us)
    report = served.measured(served.rows)
    assert report.versions == expected.versions
    assert "Captured rows without 'input.flight' (another signature, API or version): 3; left out" in report.notes
    once = {"keys": ["flight"], "estimates": False}
    report = served.measured(served.rows[:ROWS], **once)
    (note,) = [note for note in report.notes if "share their" in note]
    assert (
        f"share their label with a newer one: {(7 + 1) * ROWS}. Intervals count labels" in note
    )  # of 8 days, and of 2
    assert report.versions[0].measured == 8 * ROWS and report.versions[0].figures
    assert not served.measured(served.rows[:ROWS], min_rows=ROWS + 1, **once).versions[0].figures


def test_shared_labels_do_not_narrow_intervals() -> None:
    judge, rows = Judge("binary", "auc"), drawn(ROWS, 30)
    labels, outputs = rows["late"].to_numpy(), true_probability(rows["x"].to_numpy())
    again = measure(judge, np.tile(labels, 8), np.tile(outputs, 8), np.tile(np.arange(ROWS), 8))
    for name, (value, low, high) in measure(judge, labels, outputs).items():
        assert again[name] == pytest.approx((value, low, high), abs=0.2 * (high - low)), name


def test_classes_of_a_missing_version_are_not_borrowed(deployed: ArtifactStore) -> None:
    for classes, is_known in ((("no", "yes"), False), (None, True)):
        known = ModelProperties(label="late", problem="binary", classes=classes)
        version = find_version(deployed, "flights", 9, known)
        assert (version.is_known, "no figures, as its classes may be others" in version.why) == (is_known, not is_known)


def test_keys_of_several_columns_are_compared_across_types() -> None:
    keys = key_of([pa.array(["a", "b", "a", "a", None]), pa.array([1, 1, 2, 1, 1], pa.int16())], "labels").to_pylist()
    assert keys[0] == keys[3] and len(set(keys)) == 4 and keys[4] is None
    others = [pa.chunked_array([["a", "c"], ["b"]]).dictionary_encode(), pa.chunked_array([["2", "1", "1"]])]
    assert [key in keys for key in key_of(others, "captured").to_pylist()] == [True, False, True]
    assert len({*key_of([pa.array(["a:1", "a"]), pa.array(["b", ":1:b"])], "labels").to_pylist()}) == 2
    with pytest.raises(BadInput, match="captured: a key is of the type double; expected integers, strings or times"):
        key_of([pa.array([1.0])], "captured")


def test_a_boolean_label_is_the_class_of_its_name_in_any_order() -> None:
    labels = [True, False, "true", "False", " TRUE", 1, 0.0, "other"]
    for classes in (("true", "false"), ("True", "False")):
        assert class_numbers(labels[:5], classes, None).tolist() == [0, 1, 0, 1, 0]
    numbers = [1, 0, 1, 0, 1, 1, 0]
    for classes in (("false", "true"), ("no", "yes"), None):
        assert class_numbers(labels, classes, None).tolist() == pytest.approx([*numbers, np.nan], nan_ok=True)


def test_intervals_need_some_labels_of_each_class(serve: Callable[..., Served]) -> None:
    served = serve()
    late = served.rows["late"] == 1
    report = served.measured(served.rows[~late | (late.cumsum() <= 9)], estimates=False)
    assert report.versions[0].figures == {} and report.versions[0].labelled > 1000
    assert any(
        "labelled predictions are old enough, 100 needed, 10 of each class; those" in note for note in report.notes
    )
    assert served.measured(served.rows[~late | (late.cumsum() <= 10)], estimates=False).versions[0].figures


@pytest.mark.slow
def test_labels_of_usual_files_are_read(serve: Callable[..., Served]) -> None:
    served = serve()
    expected = served.measured(served.rows).versions
    times = pd.to_datetime(served.rows["known_at"], unit="s", utc=True)
    frame = served.rows.assign(
        flight=served.rows["flight"].astype("category"),
        late=served.rows["late"].map({0: "false", 1: "1"}).astype("category"),
        known_at=times,
    )
    assert served.measured(frame).versions == expected
    assert as_time(pa.array([1001], pa.timestamp("ns")), "labels").cast(pa.int64()).to_pylist() == [1]
    assert plain(pa.chunked_array([pa.array(["a"], pa.large_string())])).type == pa.string()
    # A label whose time is not known is neither the last nor one of the past.
    undated = served.rows.iloc[:5].assign(late=1 - served.rows["late"].iloc[:5], known_at=None)
    report = served.measured(pd.concat([served.rows, undated]).astype({"known_at": "Int64"}))
    assert (report.versions, report.labels.untimed) == (expected, 5)
    assert (
        "Labels without label_time, or whose label_time is not a time in seconds since the epoch: 5" in report.notes[1]
    )
    with pytest.raises(BadInput, match=r"labels.parquet: time_column 'known_at' has 1364817600000; expected seconds"):
        served.measured(served.rows.assign(known_at=served.rows["known_at"] * 1000))


@pytest.mark.slow
def test_feedback_and_tables_by_request_agree(serve: Callable[..., Served]) -> None:
    served = serve()
    rows = served.rows.iloc[: 2 * ROWS]
    us = 1_000_000
    served.captured.label(
        CapturedLabel("flights", row.request_id, row.row, {"late": row.late}, row.known_at * us, row.known_at * us)
        for row in rows.itertuples()
    )
    by_feedback = served.measured()
    by_table = served.measured(rows, keys=["request_id", "row"], time_feature=None)
    assert by_feedback.versions == by_table.versions and by_feedback.delay_s == by_table.delay_s is not None
    assert by_feedback.versions[0].labelled == 2 * ROWS
    with pytest.raises(
        BadInput, match="no label of the feedback is called 'later'; there are 'late': set label_column"
    ):
        served.measured(label_column="later")
    # Without the number of a row, a label is of the request's first.
    first = served.measured(rows.drop(columns="row"), keys=["request_id", "row"], time_feature=None)
    assert (first.labels.corrected, first.labels.joined) == (2, 2)


def test_missing_captured_files_and_rows_are_reported(serve: Callable[..., Served]) -> None:
    served = serve()
    with pytest.raises(BadInput, match=r"is from 2013-12-31.* the captured ones are from 2013-04-01T00:00:00"):
        served.measured(served.rows, as_of="2014-01-01", window_s=DAY)
    with pytest.raises(BadInput, match="no request of model 'unasked' was captured yet"):
        served.measured(served.rows, model_name="unasked")
    with pytest.raises(
        BadInput, match=r"4000 have no column 'input\.gate'; keys and time_feature are inputs of the model: flight, "
    ):
        served.measured(served.rows.assign(gate=1), keys=["gate"])
    with pytest.raises(BadInput, match=r"there is no column 'tail'; it has x, late"):
        served.measured(served.rows, label_column="tail")
    with pytest.raises(BadInput, match="label 'flight': none of 3600 labels is usable, such as 'AA"):
        served.measured(served.rows, label_column="flight")
    for file in served.files[2:9]:
        file.unlink()
    report = served.measured(served.rows)
    assert report.labels.unknown == 7 * ROWS
    words = f"{7 * ROWS} of {(DAYS - 1) * ROWS} labels are of no captured prediction: captured files are gone"
    assert words in " ".join(report.notes)
    served.files[0].write_bytes(served.files[0].read_bytes()[:-100])
    with pytest.raises(HopsError, match=f"{served.files[0].name}: cannot be read: .* the file is damaged"):
        served.measured(served.rows)


def test_options_are_checked() -> None:
    for options, words in (
        ({"window_s": 0}, "window is 0 seconds; expected more than 0"),
        ({"label_delay_s": -1}, "label_delay is -1 seconds"),
        ({"keys": ()}, r"keys is \(\)"),
        ({"keys": ("row",)}, r"keys is \['row'\]; the row number 'row' needs 'request_id'"),
        ({"ages_s": (2, 1)}, "ages is .* expected ascending"),
        ({"as_of": "soon"}, "as_of is 'soon', expected a time in ISO 8601"),
    ):
        with pytest.raises(BadInput, match=words):
            PerformanceOptions("flights", **options)


def test_metrics_of_several_classes_are_measured_with_intervals_and_estimated() -> None:
    random = np.random.default_rng(3)
    probabilities = random.dirichlet([1, 1, 1], 16_000)
    labels = (random.random((16_000, 1)) >= probabilities.cumsum(axis=1)[:, :-1]).sum(axis=1)
    # A model that is too sure of itself: what it says must be calibrated first.
    predicted = probabilities**3 / (probabilities**3).sum(axis=1, keepdims=True)
    judge = Judge(MULTICLASS, "log_loss", ("a", "b", "c"))
    calibrate = find_calibration(labels[:8000], predicted[:8000])
    assert calibrate is not None and find_calibration(labels[:8000] * 0, predicted[:8000]) is None
    baseline = measure(judge, labels[:8000], predicted[:8000])
    measured, estimated = (
        measure(judge, labels[8000:], predicted[8000:]),
        estimate(judge, calibrate, predicted[8000:], baseline),
    )
    assert set(measured) == set(estimated) == {
        "log_loss", "accuracy", "balanced_accuracy", "macro_f1", "weighted_f1", "auc", "worst_auc", "brier",
    }  # fmt: skip
    for name, (value, low, high) in measured.items():
        assert low < value < high, name
        assert abs(estimated[name][0] - value) < (0.04 if name == "log_loss" else 0.02), name
    sure = predicted[8000:].max(axis=1).mean()
    assert sure - measured["accuracy"][0] > 0.08 > 4 * abs(estimated["accuracy"][0] - measured["accuracy"][0])


def version_of(world: Flights, held: pd.DataFrame, **target: Any) -> Any:
    """Returns a version of a model whose examples held some rows, with what it had of them."""
    examples = world.examples({"train": drawn(10, 1), "eval": held}, key=None, time=None, more_labels=MORE, **target)
    model = write_model(world, examples)
    properties = ModelProperties.of(world.store.manifest(model.uri)).of_label("late")
    return with_baseline(world.store, 1, ScoredModel(world.store.local(model) / "saved_model"), properties, examples)


def test_baseline_of_weighted_rows_stands_for_the_requests(flights: Flights) -> None:
    """Nine tenths of the early rows are not in the examples; the others have the weight ten."""
    rows = drawn(40_000, 40)
    rows["weight"] = np.where(rows["late"] == 1, 1.0, 10.0)
    thinned = rows[(rows["late"] == 1) | (np.random.default_rng(41).random(len(rows)) < 0.1)]
    baselines, calibrated = {}, {}
    for name, held, weight in (("whole", rows.assign(weight=1.0), None), ("thinned", thinned, "weight")):
        version = version_of(flights, held, weight=weight)
        assert version.calibration is not None
        baselines[name], calibrated[name] = version.baseline, version.calibration(np.array([[0.7, 0.3]]))[0, 1]
    for metric, (value, low, high) in baselines["thinned"].items():
        whole = baselines["whole"][metric]
        assert low < whole[0] < high and abs(value - whole[0]) < 0.02, metric
        drop = worse_by(metric, whole, baselines["thinned"][metric])
        assert drop[1] <= 0 <= drop[2], metric
    assert calibrated["thinned"] == pytest.approx(calibrated["whole"], abs=0.02)


def test_baseline_needs_some_rows(flights: Flights) -> None:
    for held, words in (
        (drawn(0, 1), "split 'eval' has too few rows: none, expected at least 10 of each class"),
        (drawn(300, 1).assign(late=(np.arange(300) < 9) * 1), "split 'eval' has too few rows: .*9, expected"),
        (drawn(15, 2).loc[np.repeat(np.arange(15), 40)], "expected at least 10 of each class"),
        (drawn(300, 1).assign(late=0), "expected at least 10 of each class"),
    ):
        with pytest.raises(BadInput, match=words):
            version_of(flights, held)


@dataclass(frozen=True)
class Point:
    """Rows of the held-out split and of the window, share of the rarest class, and whether the split is thinned."""

    problem: Any
    kind: str
    held: int
    window: int
    share: float
    is_thinned: bool


def _rows(random: np.random.Generator, point: Point, rows: int) -> tuple[Any, Any]:
    if point.problem == "regression":
        truth = random.normal(size=rows)
        return truth + 0.7 * random.normal(size=rows), truth
    if point.problem == "binary":
        labels = (random.random(rows) < point.share).astype(int)
        return labels, random.normal(size=rows) + labels
    labels = random.choice(3, rows, p=[0.6 - point.share, 0.4, point.share])
    return labels, random.normal(size=(rows, 3)) + np.eye(3)[labels]


def _answers(point: Point, scores: Any) -> Any:
    if point.kind == "leaves":
        scores = np.digitize(scores, [-1.2, -0.5, 0.0, 0.5, 1.2]) * 0.5 - 1.2
    if point.kind in ("one-hot", "constant"):
        scores = np.where(scores > 0, 6.0, -6.0) * (point.kind == "one-hot")
    if point.problem == "multiclass":
        return np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return scores if point.problem == "regression" else true_probability(scores)


@campaign("draws", 20, 700)
def test_same_model_is_rarely_called_worse_than_at_training(draws: int) -> None:
    """A drop's interval ends above 0 by a chance of 2.5%."""
    for problem in ("binary", "regression", "multiclass"):
        hits, known = dict[str, int](), dict[str, int]()
        random, judge = np.random.default_rng([draws, len(problem)]), Judge(problem, "")
        for _ in range(draws):
            kind, share = random.choice(["continuous", "leaves", "one-hot", "constant"]), random.choice([0.4, 0.1])
            held, window = (int(rows) for rows in random.choice([100, 300, 1000, 5000], 2))
            point = Point(problem, str(kind), held, window, float(share), bool(random.random() < 0.5))
            labels, truth = _rows(random, point, held * (8 if point.is_thinned else 1))
            weights = None
            if point.is_thinned:
                is_rare = truth > 0.5 if problem == "regression" else labels == labels.max()
                rows_in = np.flatnonzero(is_rare | (random.random(len(labels)) < 0.1))[:held]
                labels, truth, weights = labels[rows_in], truth[rows_in], np.where(is_rare[rows_in], 1.0, 10.0)
            baseline = measure(judge, labels, _answers(point, truth), None, weights)
            labels, truth = _rows(random, point, window)
            for name, figure in measure(judge, labels, _answers(point, truth)).items():
                if name in baseline:
                    known[name] = known.get(name, 0) + 1
                    hits[name] = hits.get(name, 0) + (worse_by(name, figure, baseline[name])[1] > 1e-9)
        for name, count in known.items():
            assert hits[name] <= stats.binom.isf(1e-4, count, 0.025), (problem, name, hits[name], count)
