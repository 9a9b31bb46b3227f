"""Labels of a table, joined with predictions by key and time."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from campaigns import campaign

from airflow_hops.core.errors import BadInput
from airflow_hops.core.performance import PerformanceReport
from airflow_hops.ml.performance import stage
from airflow_hops.ml.performance.labels import Usage, key_of, one_for_each
from tests.ml.world import World

DAY = 86_400
START = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp())


def expected(labels: pd.DataFrame, key: str, time: int, horizon: float | None) -> float | None:
    """The label of a prediction, by the words of the documentation."""
    mine = labels[(labels["key"] == key) & labels["label"].notna() & labels["at"].notna()]
    if horizon is not None:
        mine = mine[(mine["at"] >= time) & (mine["at"] <= time + horizon)]
    last = mine[mine["at"] == mine["at"].max()]["label"].unique()
    return last[0] if len(last) == 1 else None


@campaign("tables", 15, 3000)
def test_labels_are_joined_as_one_would_by_hand(tables: int) -> None:
    for seed in range(tables):
        random = np.random.default_rng(seed)
        size, keys, span = random.integers(0, 40), random.integers(1, 8), int(random.choice([3, 30]))
        labels = pd.DataFrame(
            {
                "key": random.choice([f"k{number}" for number in range(keys)] + [None], size),
                "at": pd.array(random.integers(0, span, size), "Int64"),
                "label": random.choice([0.0, 1.0, 2.0, np.nan], size),
            }
        )
        labels.loc[random.random(size) < 0.1, "at"] = pd.NA
        horizon = None if random.random() < 0.3 else float(random.integers(0, span))
        known = pa.array(
            [None if pd.isna(each) else int(each) * 10**6 for each in labels["at"]], pa.timestamp("us", "UTC")
        )
        texts = pa.array(labels["key"].tolist(), pa.string())
        label = pa.array([None if np.isnan(each) else each for each in labels["label"]], pa.float64())
        table = pa.table({"key": texts, "label": label, "known_at": known})
        chosen = one_for_each(table, ["key"], None, horizon_s=horizon)
        asked = [(f"k{random.integers(keys + 1)}", int(random.integers(0, span))) for _ in range(50)]
        usage, used = Usage(chosen), np.zeros(len(chosen.codes), bool)
        for part in (asked[:20], asked[20:]):  # as files of captured rows
            times = np.array([time for _, time in part]) * 10**6
            match = chosen.match(key_of([pa.array([key for key, _ in part])], "rows"), times, usage)
            values = [chosen.values[chosen.codes[number]] if number >= 0 else None for number in match]
            assert values == [expected(labels, key, time, horizon) for key, time in part], (seed, horizon)
            used[match[match >= 0]] = True
        counts = usage.counts(used)
        usable = labels.dropna()
        groups = usable.groupby(["key"] if horizon is None else ["key", "at"])["label"]
        assert counts.missing == labels["label"].isna().sum()
        assert counts.keyless == (labels["key"].isna() & labels["label"].notna()).sum()
        assert counts.untimed == labels["at"].isna()[labels["key"].notna() & labels["label"].notna()].sum()
        assert (counts.given, counts.joined) == (len(usable), used.sum())
        if horizon is not None:  # each key and time is counted once
            by_hand = Counter[str]()
            for (key, moment), values in groups:
                mine = [time for name, time in asked if name == key]
                ends = Counter(time for time in mine if time <= moment <= time + horizon)
                if values.nunique() > 1:
                    by_hand["contradictory"] += 1
                elif not mine:
                    by_hand["unknown"] += 1
                elif moment < min(mine):
                    by_hand["early"] += 1
                elif not ends:
                    by_hand["late"] += 1
                else:
                    later = labels[(labels["key"] == key) & (labels["at"] > moment)].dropna()["at"]
                    is_last = [time for time in ends if not ((later >= time) & (later <= time + horizon)).any()]
                    by_hand["joined" if is_last else "corrected"] += 1
            names = ("contradictory", "unknown", "early", "late", "joined", "corrected")
            assert {name: getattr(counts, name) for name in names} == {name: by_hand[name] for name in names}, seed


def test_keys_and_times_may_be_many() -> None:
    count = 50_000  # squared, it is beyond 32 bits
    keys, seconds = pa.array(range(count)), np.arange(count) + START
    known = pa.array(seconds * 10**6, pa.timestamp("us", "UTC"))
    chosen = one_for_each(pa.table({"key": keys, "label": keys, "known_at": known}), ["key"], None, horizon_s=DAY)
    match = chosen.match(key_of([pa.chunked_array([keys])], "rows"), seconds * 10**6)
    assert (np.array(chosen.values)[chosen.codes[match]] == np.arange(count)).all() and match.min() >= 0


class Scored:
    """Customers scored in three nights, captured as ``ScoreOperator`` does, and a table of labels."""

    def __init__(self, world: World) -> None:
        self.world, self.captured = world, world.captured()
        world.deploy(world.artifact("model", label="churned", problem="binary"), "flights", version=3)

    def score(self, keys: list[Any], window: str, after: int = 10 * DAY, **columns: Any) -> None:
        """Captures rows that were scored at a time, by default long after their window."""
        count = len(keys)
        values = {
            "request_id": [f"{key}@{window}" for key in keys], "row": pa.array([0] * count, pa.int32()),
            "version": [3] * count, "api": ["batch"] * count, "output.probability": [0.5] * count,
            "captured_at": pa.array([(START + after) * 10**6] * count, pa.timestamp("us", "UTC")), **columns,
        }  # fmt: skip
        self.captured.write(pa.table(values))

    def measure(self, labels: Any, **options: Any) -> PerformanceReport:
        path = self.world.folder / "labels.parquet"
        pq.write_table(pa.table(labels), path)
        values = {"keys": ["customer"], "label_time": "at", "horizon_s": 2.0 * DAY, "as_of": "2026-11-20"}
        values |= {"source": {"uri": str(path)}, **options}
        services = {"serving_capture_path": str(self.captured.path)}
        artifact = self.world.run(stage, services=services, model_name="flights", min_rows=2, **values)
        return PerformanceReport.from_dict(self.world.read(artifact, "performance.json"))


@pytest.fixture
def scored(world: World) -> Scored:
    return Scored(world)


def test_scored_rows_are_found_by_key_and_window(scored: Scored) -> None:
    for night in (2, 3, 4):
        scored.score(["a@example.com", "b"], f"2026-11-0{night}T00:00:00+00:00")
    scored.score(["a@example.com"], "2026-11-05")
    times = [START + days * DAY for days in (-1, 2, 3, 9, 3)]
    labels = {"customer": ["b", "a@example.com", "b", "b", "c"], "churned": [1, 1, 0, 1, 0], "at": times}
    report = scored.measure(labels)
    # The label of the third is of the predictions of the second and third; those of the first and tenth of none.
    assert [(each.start[:10], each.rows, each.labelled) for each in report.periods] == [
        ("2026-11-02", 2, 2), ("2026-11-03", 2, 2), ("2026-11-04", 2, 1), ("2026-11-05", 1, 0),
    ]  # fmt: skip
    counts = report.labels
    assert (counts.given, counts.joined, counts.early, counts.late, counts.unknown) == (5, 2, 1, 1, 1)
    notes = " ".join(report.notes)
    assert "Labels that became known before each prediction of their key: 1; left out" in notes
    assert "Labels that became known after the horizon of each prediction of their key: 1; left out" in notes
    assert "Labelled predictions that share their label with a newer one: 3" in notes
    assert scored.measure(labels) == report, "the same again"


def test_integer_keys_agree_with_ids_and_runs_count_by_their_time(scored: Scored) -> None:
    scored.score([1, 2], "manual__2026-11-02T00:00:00+00:00")
    labels = {"customer": [1, 2], "churned": [1, None], "at": pa.array([START + d * DAY for d in (11, 11)])}
    report = scored.measure(labels)
    assert (report.versions[0].rows, report.versions[0].labelled, report.labels.missing) == (2, 1, 1)
    assert "Labels without a value: 1; left out" in report.notes


@pytest.mark.parametrize(
    ("captured", "labels", "options", "message"),
    [
        ({}, {}, {"horizon_s": None}, "keys name 'customer', which the model does not take; .* give a hor"),
        ({}, {"site": ["x"]}, {"keys": ["customer", "site"]}, "keys name 'customer' and 'site', which"),
        ({}, {}, {"label_time": None}, "horizon is 172800 seconds, but label_time is None"),
        ({"input.customer": ["a"]}, {"customer": [1.0]}, {}, "key 'customer' is double among the labels, and string"),
        (
            {"input.customer": ["a"]}, {"customer": pa.array([0], pa.timestamp("s"))}, {},
            "key 'customer' is timestamp.* among the labels, and string in 2023.*parquet of the captured",
        ),
        (
            {}, {"customer": pa.array([0], pa.timestamp("s"))}, {},
            "key 'customer' is timestamp.* among the labels, and string in 2023.*parquet of the captured",
        ),
        ({"api": ["REST"]}, {}, {}, "no captured row can be measured: 1 have no column 'input.customer'"),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_joined_are_refused(
    scored: Scored, captured: Any, labels: Any, options: Any, message: str
) -> None:
    scored.score(["a"], "2026-11-02", **captured)
    with pytest.raises(BadInput, match=message):
        scored.measure({"customer": ["a"], "churned": [1], "at": [START + 2 * DAY], **labels}, **options)


def test_requests_are_found_by_an_input_that_is_asked_again(scored: Scored) -> None:
    for day in (1, 8):
        scored.score(["r1", "r2"], "x", day * DAY, api=["REST"] * 2, **{"input.customer": pa.array([7, 8])})
    labels = {"customer": [7, 7, 8], "churned": [1, 0, 1], "at": [START + d * DAY for d in (2, 9, 5)]}
    report = scored.measure(labels)
    assert [(each.rows, each.labelled) for each in report.periods] == [(2, 1), (2, 1)]
    assert (report.labels.joined, report.labels.late) == (2, 1)
    once = scored.measure(labels, horizon_s=None)
    assert [(each.rows, each.labelled) for each in once.periods] == [(2, 2), (2, 2)]
    assert once.labels.early == 1 and "before their predictions: 1; they count, as there is no" in " ".join(once.notes)
