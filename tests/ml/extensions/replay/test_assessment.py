"""Assessment of a back-test's candidate in each period, and the reports of its monitors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from captured_flights import CaptureFolder
from echo_models import write_function

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.performance import PerformanceProperties
from airflow_hops.core.skew import SkewProperties
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.replay.core.backtest import Assessment, delay_key
from airflow_hops.extensions.replay.ml.backtest import stage as backtest
from airflow_hops.extensions.replay.ml.backtest.history import labels_of
from airflow_hops.ml.metrics.class_names import ClassNames
from airflow_hops.ml.performance import stage as performance
from airflow_hops.ml.schema import stage as schema
from airflow_hops.ml.skew import stage as skew
from airflow_hops.ml.statistics import stage as feature_statistics
from airflow_hops.ml.step.context import StepContext
from tests import flights_examples
from tests.ml.conftest import stage_runner

DAY = 86_400
WEEK = 7 * DAY
START = 1_364_774_400  # 2013-04-01
ROWS = (1500, 600, 900, 1200)
TIME = "scheduled_at"
SKEW = {"model_name": "flights", "time_feature": TIME}
PERFORMANCE = {"model_name": "flights", "window_s": 2.0 * WEEK, "min_rows": 50}


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


TICKS = [iso(START + number * WEEK) for number in range(len(ROWS) + 1)]


def drawn(rows: int, seed: int, *, start: int = START - 8 * WEEK, shift: float = 0.0) -> pd.DataFrame:
    """A week's rows in the order of time, whose label has the probability that the model says; some values missing."""
    random = np.random.default_rng(seed)
    x = random.normal(shift, size=rows)
    late = (random.random(rows) < 1 / (1 + np.exp(-x))).astype(np.int64)
    carrier = random.choice(["AA", "UA", "DL"], rows, p=[0.5, 0.3, 0.2]).astype(object)
    carrier[random.random(rows) < 0.02] = None
    x[random.random(rows) < 0.02] = np.nan
    times = start + np.sort(random.integers(0, WEEK, rows))
    return pd.DataFrame({"x": x, "carrier": carrier, TIME: times, "late": late})


WEEKS = [drawn(n, 10 + k, start=START + k * WEEK, shift=4.0 * (k > 1)) for k, n in enumerate(ROWS)]


def _write_model(context: StepContext, *, takes: Sequence[str] = ("x", TIME, "carrier"), **properties: Any) -> Artifact:
    def serve(x: Any, scheduled_at: Any, carrier: Any = "AA") -> Any:
        known = tf.where(tf.math.is_nan(x), 0.0, x)  # an infinite one makes NaN
        return {"probability": tf.sigmoid(known - 0 * known + 0.1 * tf.cast(carrier == "AA", tf.float32))}

    specs = {"x": tf.float32, TIME: tf.int64, "carrier": tf.string}
    statistics = context.input("statistics")
    fields = {
        "label": "late", "problem": "binary", "signature": "serving_default", "features": ["x", "carrier"],
        "inputs": ["x", "carrier", TIME], "statistics": statistics.uri, "schema": context.input("schema").uri,
        "statistics_fingerprint": statistics.fingerprint,
    }  # fmt: skip
    with context.output() as writer:
        write_function(writer.path / "saved_model", serve, **{name: specs[name] for name in takes})
        return writer.commit(properties={**fields, **properties})


class Tried:
    """A candidate that was trained until :data:`START`, and a way to assess it."""

    def __init__(self, folder: Path) -> None:
        self.store = ArtifactStore(str(folder / "store"))
        self.run = stage_runner(self.store, folder)
        splits = {"train": drawn(4000, 1), "eval": drawn(3000, 2)}
        properties = {"key": None, "problem": "binary", "window": None}
        examples = flights_examples.write_examples(self.store, splits, **properties)
        statistics = self.run(feature_statistics.run, kind="statistics", inputs={"examples": examples})
        frozen = self.run(schema.run, kind="schema", inputs={"statistics": statistics})
        self.inputs = {"statistics": statistics, "schema": frozen, "examples": examples}
        self.inputs["model"] = self.model()

    def model(self, **properties: Any) -> Artifact:
        result: Artifact = self.run(_write_model, kind="model", inputs=self.inputs, **properties)
        return result

    def assess(self, splits: dict[str, Any], history: Any = None, **params: Any) -> tuple[Artifact, Assessment]:
        values = {
            "ticks": TICKS,
            "trained_until": TICKS[0],
            "delays_s": [0.0],
            "skew": SKEW,
            "performance": PERFORMANCE,
        }
        properties = {"key": None, "problem": "binary", **(history or {})}
        examples = flights_examples.write_examples(self.store, splits, run_id="history", **properties)
        inputs = {**self.inputs, **params.pop("inputs", {}), "history": examples}
        artifact = self.run(backtest.run, kind="assessment", inputs=inputs, **{**values, **params})
        value = json.loads((self.store.local(artifact) / "assessment.json").read_text())
        return artifact, Assessment.from_dict(value)


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    return Tried(tmp_path_factory.mktemp("tried"))


def _deploy(tried: Tried) -> None:
    """Has the candidate serve as version 1 of the model ``flights``."""
    inputs = tried.inputs
    champion = {
        "version": 1, "model": inputs["model"].to_dict(), "statistics": inputs["statistics"].uri,
        "schema": inputs["schema"].uri, "fingerprint": inputs["model"].fingerprint,
        "serving_path": "/models/flights/1", "since": TICKS[0],
    }  # fmt: skip
    record = {"champion": champion, "challenger": None, "history": []}
    tried.store.write_text(tried.store.internal("_models", "flights.json"), json.dumps(record))


def _ask(captured: CaptureFolder, tried: Tried, rows: pd.DataFrame) -> None:
    """Captures a week's rows as a server does that is asked for all of them when the last is known."""
    inputs = {
        "x": rows["x"].to_numpy(np.float32),
        "carrier": np.array([(value or "").encode() for value in rows["carrier"]], object),
        TIME: rows[TIME].to_numpy(np.int64),
    }
    loaded = tf.saved_model.load(str(tried.store.local(tried.inputs["model"]) / "saved_model"))
    outputs = loaded.signatures["serving_default"](**{name: tf.constant(v) for name, v in inputs.items()})
    at_us = int(rows[TIME].iloc[-1]) * 1_000_000
    captured.answer(inputs, {name: tensor.numpy() for name, tensor in outputs.items()}, version=1, at_us=at_us)


def _leaves(value: Any) -> Iterator[Any]:
    """Yields keys and values within nested values."""
    if isinstance(value, dict):
        value = [each for pair in value.items() for each in pair]
    if isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


@pytest.mark.slow
def test_assessment_agrees_with_the_monitors(tried: Tried, tmp_path: Path) -> None:
    _deploy(tried)
    delays = [0.0, 10.0 * DAY]
    splits = {"eval": WEEKS[0], "newest": WEEKS[1], "train": pd.concat(WEEKS[2:])}
    monitor = {**PERFORMANCE, "label_delay_s": 9.0 * WEEK}  # the delays that are tried stand in its place
    artifact, result = tried.assess(splits, delays_s=delays, performance=monitor)
    assert artifact.rows["history"].rows_in == artifact.rows["history"].rows_out == sum(ROWS)
    assert [each.rows for each in result.periods] == list(ROWS)
    captured = CaptureFolder(tmp_path / "captured")
    services = {"serving_capture_path": str(captured.path)}
    for period, week in zip(result.periods, WEEKS, strict=True):
        _ask(captured, tried, week)
        live = tried.run(skew.run, kind="skew", task_id="monitor", services=services, **SKEW)
        # Rows are asked for a week at a time there, and each at its own time here.
        requests = dict.fromkeys(("captured_files", "captured_from", "captured_until"))
        assert {**period.skew, **requests} == {**live.properties, **requests}
        assert period.compared == live.metrics["rows_current"]
    verdicts = [SkewProperties.from_dict(each.skew) for each in result.periods]
    # The second week has too few rows, which wait for the third.
    assert [each.verdict for each in verdicts] == ["stable", "insufficient", "drift", "drift"]
    assert [each.compared for each in result.periods] == [1500, 600, 1500, 1200]
    assert verdicts[2].drifted == ("x",) and 0.1 < verdicts[2].effects["x"] < 0.6
    assert (verdicts[2].window_start, verdicts[2].window_end) == (TICKS[1], TICKS[3])

    rows = pd.concat(WEEKS).assign(row=np.concatenate([np.arange(n) for n in ROWS]))
    rows["request_id"] = [f"request-{week}" for week, n in enumerate(ROWS) for _ in range(n)]
    for number in (1, 3):
        for delay in delays:
            labels = rows.assign(known_at=rows[TIME] + int(delay))
            pq.write_table(pa.Table.from_pandas(labels), tmp_path / "labels.parquet")
            live = tried.run(
                performance.run, kind="performance", services=services, **PERFORMANCE, as_of=TICKS[number + 1],
                time_feature=TIME, source={"uri": str(tmp_path / "labels.parquet")}, label_time="known_at",
            )  # fmt: skip
            (expected,) = PerformanceProperties.of(live).versions
            measured = result.periods[number].measured[delay_key(delay)]
            # Batches of another size can change the last bits of a prediction.
            assert list(_leaves(asdict(measured))) == pytest.approx(list(_leaves(asdict(expected))), abs=1e-6)
            assert measured.figures and measured.estimates and measured.baseline and measured.drop
            assert measured.rows > measured.measured if delay else measured.rows == measured.measured
    # All labels count here, whenever they come: the last week's are those of 1,200 rows.
    value, low, high = result.periods[3].figures["accuracy"]
    x = WEEKS[3]["x"].fillna(0) + 0.1 * (WEEKS[3]["carrier"] == "AA")
    assert value == pytest.approx(((x >= 0) == (WEEKS[3]["late"] == 1)).mean()) and low < value < high


def test_rows_are_conserved_and_uninformative_ones_counted(tried: Tried) -> None:
    earlier, later = drawn(30, 3), drawn(20, 4, start=START + 4 * WEEK)
    weeks = [WEEKS[0], WEEKS[1].iloc[:0], WEEKS[2].assign(late=1), WEEKS[3]]
    rows = pd.concat([earlier, *weeks, later]).astype({TIME: "Int64", "late": "Int64"})
    mixed = rows.sample(frac=1, random_state=0).reset_index(drop=True)
    mixed.loc[:4, TIME] = None
    of_last = mixed.index[(mixed[TIME] >= START + 3 * WEEK) & (mixed[TIME] < START + 4 * WEEK)]
    mixed.loc[of_last, "late"] = None
    mixed.loc[of_last[:3], "x"] = np.inf
    params: dict[str, Any] = {"skew": {**SKEW, "alpha": None, "attribute": False, "min_rows": 100}}
    artifact, result = tried.assess({"train": mixed.iloc[::2], "eval": mixed.iloc[1::2]}, **params)
    counts = artifact.rows["history"]
    of_weeks = pd.cut(mixed[TIME].dropna().astype(float), [START + k * WEEK - 0.5 for k in range(5)], labels=False)
    assert [each.rows for each in result.periods] == [int((of_weeks == k).sum()) for k in range(4)]
    assert counts.rejected["no time"] == 5 and counts.rejected["before the periods"] >= 25
    assert counts.rows_in == len(mixed) == counts.rows_out + counts.rows_rejected
    first, empty, of_one_class, unlabelled = result.periods
    assert empty.figures == unlabelled.figures == {} and empty.skew["verdict"] == "insufficient"
    assert (empty.skew["window_end"], empty.compared) == (None, 0)
    assert "auc" in first.figures and set(of_one_class.figures) == {"log_loss", "accuracy", "brier"}
    assert unlabelled.measured["0"].rows == of_one_class.rows + unlabelled.rows - 3 > unlabelled.measured["0"].labelled
    notes = " ".join(result.notes)
    assert "Rows of which probability is NaN or infinite: 3; they are compared, but not measured" in notes
    assert "whose 'scheduled_at' is not a time in seconds since the epoch: 5; left out" in notes
    assert f"without a label: {unlabelled.rows}; they are compared, but not measured" in notes
    assert "In 2 of 4 periods auc is not defined" in notes and "1 of 4 periods have no rows" in notes


def test_classes_are_matched_by_name_and_unknown_ones_reported(tried: Tried) -> None:
    params: dict[str, Any] = {"ticks": TICKS[:2], "skew": {**SKEW, "alpha": None, "attribute": False}}
    params["inputs"] = {"model": tried.model(classes=["late", "on time"])}
    with pytest.raises(
        BadInput, match="has the problem 'binary', but the label 'late' of the examples has 'multiclass'"
    ):
        tried.assess({"train": WEEKS[0]}, {"classes": ["a", "b", "c"], "problem": "multiclass"}, **params)
    _, result = tried.assess({"train": WEEKS[0]}, {"classes": ["on time", "late"]}, **params)
    assert result.periods[0].figures["auc"][0] < 0.4  # what the model calls 0 is 1 in the history
    assert any("no baseline" in note and "which the model does not know" in note for note in result.notes)
    names = ClassNames(("a", "b", "c"), {"candidate": ("c", "a")})
    labels, unusable = labels_of(pa.array([0, 1, 2, None, 7]), names, regression=False)
    assert labels.tolist() == pytest.approx([1, np.nan, 0, np.nan, np.nan], nan_ok=True)
    assert unusable == {"no label": 1, "unknown class": 2}


def test_periods_before_the_end_of_the_training_are_left_out(tried: Tried) -> None:
    params: dict[str, Any] = {"skew": {**SKEW, "alpha": None, "attribute": False}, "performance": {}}
    ticks = [iso(START - WEEK), *TICKS[:2]]
    _, result = tried.assess({"train": WEEKS[0]}, ticks=ticks, **params)
    assert [(each.start, each.end) for each in result.periods] == [(TICKS[0], TICKS[1])]
    with pytest.raises(BadInput, match="no period begins after the candidate's training data, which ends 2013-04-01"):
        tried.assess({"train": WEEKS[0]}, ticks=ticks[:2])


@pytest.mark.parametrize(
    ("change", "params", "words"),
    [
        (
            lambda rows: rows.drop(columns="carrier"),
            {},
            "there is no column 'carrier', which the candidate's signature has as string",
        ),
        (lambda rows: rows.assign(x="1"), {}, "column 'x' is string, but float32 in the candidate's signature"),
        (lambda rows: rows.assign(scheduled_at=0), {}, r"no row in the periods \(before the periods: 1500, after"),
        (lambda rows: rows, {"ticks": TICKS[::-1]}, "expected at least two times of ISO 8601, ascending"),
        (lambda rows: rows, {"delays_s": [-1.0]}, "delays_s has -1.0; expected seconds of at least 0"),
        (lambda rows: rows, {"history": {"time": None}}, "the history has no time column"),
        (lambda rows: rows, {"history": {"time": "at"}}, "there is no column 'at', which its properties has as int64"),
    ],
)
def test_incompatible_history_is_refused(
    tried: Tried, change: Callable[..., Any], params: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        tried.assess({"train": change(WEEKS[0])}, **params)


def test_unused_training_feature_is_named(tried: Tried) -> None:
    with pytest.raises(
        BadInput,
        match="the candidate does not take feature 'carrier', on which it was trained; it takes scheduled_at, x",
    ):
        tried.assess({"train": WEEKS[0]}, inputs={"model": tried.model(takes=["x", TIME])})
