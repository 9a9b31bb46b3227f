"""The loop without a server finds in the same rows what the loop with the model server finds."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from campaigns import campaign
from echo_models import write_function
from server_process import ServerProcess, Start
from sklearn import datasets

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.performance import PerformanceReport
from airflow_hops.core.retraining.conditions import Drift
from airflow_hops.core.retraining.decision import RetrainingDecision, decide
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.retraining.situation import Situation
from airflow_hops.extensions.scoring.ml import stage as score
from airflow_hops.ml.performance import stage as performance
from airflow_hops.ml.skew import stage as skew
from airflow_hops.ml.spark.pools import IN_PROCESS
from tests.ml.world import Flights, World

ROWS, DRIFT, BACK = 300, 2, 7
"""Rows of a window, the first that drifts, and the first that does no longer."""
POLICY = RetrainingPolicy(when=Drift(consecutive=2))
START_S = 1_790_000_000


def bundled(name: str, columns: int = 12, **changes: Callable[[pd.DataFrame], Any]) -> pd.DataFrame:
    """Returns a table of scikit-learn with some of its columns and its ``target``, and changed or added ones."""
    table = getattr(datasets, f"load_{name}")(as_frame=True)
    frame = table["frame"] if name != "linnerud" else table["data"].assign(target=table["target"]["Weight"])
    frame = pd.concat([frame.drop(columns="target").iloc[:, -columns:], frame["target"]], axis=1)
    frame.columns = [re.sub(r"\W+", "_", name).strip("_") for name in frame.columns]
    return frame.assign(**changes)


SPECIES = np.array(["setosa", "versicolor", "ü-virginica"])
TABLES: dict[str, tuple[str, Callable[[], pd.DataFrame]]] = {
    "iris": ("multiclass", lambda: bundled("iris")),
    "wine": ("multiclass", lambda: bundled("wine")),
    "digits": ("multiclass", lambda: bundled("digits")),
    "cancer": ("binary", lambda: bundled("breast_cancer")),
    "diabetes": ("regression", lambda: bundled("diabetes")),
    "linnerud": ("regression", lambda: bundled("linnerud")),
    "texts": ("regression", lambda: bundled("iris", species=lambda t: SPECIES[t["target"]])),
    "constant": ("regression", lambda: bundled("diabetes", 3, zero=0.0, one=1)),
    "integers": (
        "binary",
        lambda: bundled("wine", target=lambda t: t["target"] // 2, whole=lambda t: 9 * t["hue"] // 1),
    ),
    "codes": ("binary", lambda: bundled("breast_cancer", 4, code=lambda t: t["worst_concavity"].map("c{:.1f}".format))),
    "holes": ("binary", lambda: bundled("breast_cancer", 5, worst_area=lambda t: t.iloc[:, 0].where(t.index % 7 > 0))),
}
"""Tables by name, with the kind of the problem; ``flights`` comes from a fixture."""


@dataclass
class Loop:
    """A table, its model, and both ways to ask it."""

    world: World
    name: str
    problem: str
    table: pd.DataFrame

    @property
    def features(self) -> list[str]:
        return [name for name in self.table.columns if name != "target"]

    def serve(self) -> Artifact:
        """Writes a model of all features with random weights, and records it as the champion."""
        random, kinds = np.random.default_rng(len(self.table)), dict[str, Any]()
        classes = int(self.table["target"].max()) + 1
        for name in self.features:
            kind = self.table[name].dtype.kind
            kinds[name] = {"i": tf.int64, "f": tf.float32}.get(kind, tf.string)
        numbers = self.table[[name for name, kind in kinds.items() if kind != tf.string]]
        middle, spread = numbers.mean(), numbers.std().replace(0, 1)
        weights = {name: random.normal(0, 1, classes if self.problem == "multiclass" else 1) for name in kinds}

        def outputs(*values: Any) -> dict[str, Any]:
            total = 0.0
            for name, value in zip(kinds, values, strict=True):
                number = tf.cast(tf.strings.length(value) if kinds[name] == tf.string else value, tf.float32)
                scaled = (number - middle.get(name, 3.0)) / spread.get(name, 1.0)
                scaled = tf.where(tf.math.is_nan(scaled), 0.0, scaled)
                total += scaled[:, None] * tf.constant(weights[name], tf.float32)
            if self.problem == "multiclass":
                return {"probabilities": tf.nn.softmax(total)}
            return {"probability": tf.sigmoid(total[:, 0])} if self.problem == "binary" else {"prediction": total[:, 0]}

        known = self.rows(0, 2000)
        described = self.world.described(self.world.examples({"train": known}, key="id", label="target"))
        uris = {role: described[role].uri for role in ("statistics", "schema")}
        more = {"classes": [str(each) for each in range(classes)]} if self.problem == "multiclass" else {}
        model = self.world.model(
            lambda folder: write_function(folder, outputs, **kinds),
            features=self.features, inputs=self.features, label="target", problem=self.problem,
            signature="serving_default", made_from={"examples": [described["examples"]]}, **uris, **more,
        )  # fmt: skip
        self.world.deploy(model, self.name)
        return model

    def rows(self, window: int, count: int = ROWS) -> pd.DataFrame:
        """Returns rows that are drawn from the table, and from some window on with a shifted number."""
        random = np.random.default_rng([window, count])
        rows = self.table.sample(count, replace=True, random_state=random.integers(2**31)).reset_index(drop=True)
        number = next(name for name in self.features if rows[name].dtype.kind == "f" and rows[name].std() > 0)
        if DRIFT <= window < BACK:
            rows[number] += 2 * self.table[number].std()
        return rows.assign(id=[f"k{window}-{row}" for row in range(count)])

    def score(self, window: int) -> None:
        days = [f"2026-11-{window + day:02}T00:00:00+00:00" for day in (1, 2)]
        examples = self.world.examples({"rows": self.rows(window)}, key="id", label="target", window=days)
        services = {"serving_kind": "batch", "serving_capture_path": str(self.world.folder / "scored")}
        ids = {"kind": "predictions", "task_id": "score", "services": services}
        scored = self.world.run(score.run, examples=examples, model_name=self.name, **ids)
        if self.problem == "multiclass":
            table = pq.read_table(self.world.store.local(scored) / "rows").to_pandas()
            assert [*table["class"]] == [str(np.argmax(each)) for each in table["probabilities"]]

    def ask(self, server: ServerProcess, window: int) -> None:
        rows = self.rows(window)[self.features]
        status, answer = server.call(f"/v1/models/{self.name}:predict", {"instances": rows.to_dict("records")})
        assert status == 200, str(answer)[:300]
        server.flush()

    def watch(self, way: str) -> tuple[Artifact, dict[str, Any]]:
        """Compares what was captured since the last time; returns the report also without places and times."""
        services = {"serving_capture_path": str(self.world.folder / way)}
        options = {"model_name": self.name, "min_rows": ROWS}
        artifact = self.world.run(skew, services=services, task_id=f"{way}-{self.name}", **options)
        report = self.world.read(artifact, "report.json")
        return artifact, {name: value for name, value in report.items() if not name.startswith("captured_")}

    def labels(self, windows: int) -> pd.DataFrame:
        """Returns the labels that have come since the first window: some after one or three more, a tenth never."""
        tables = []
        for window in range(windows):
            rows, random = self.rows(window), np.random.default_rng([7, window])
            delay = random.choice([0, 1, 3, 99], ROWS, p=[0.3, 0.3, 0.3, 0.1])
            seconds = datetime(2026, 11, window + 2, tzinfo=UTC).timestamp() + 86_400 * delay
            known = rows.assign(at=seconds.astype(int), row=np.arange(ROWS, dtype=np.int32), window=window)
            tables.append(known[window + delay < windows])
        return pd.concat(tables)[["id", "row", "window", "at", "target"]]

    def measure(self, way: str, labels: pd.DataFrame, **options: Any) -> list[Any]:
        """Measures what was captured by the labels that have come; returns counts, metrics and estimates by version."""
        path = self.world.folder / f"{way}-labels.parquet"
        labels.to_parquet(path)
        services = {"serving_capture_path": str(self.world.folder / way)}
        ids = {"services": services, "task_id": f"labels-{way}-{self.name}"}
        artifact = self.world.run(performance, **ids, model_name=self.name, source={"uri": str(path)}, **options)
        report = PerformanceReport.from_dict(self.world.read(artifact, "performance.json"))
        counts = {name: getattr(report.labels, name) for name in ("given", "joined", "unknown", "contradictory")}
        return [counts, *({**each.to_dict(), "start": "", "end": ""} for each in report.versions)]


@pytest.fixture
def loops(world: World, flights: Flights, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], dict[str, Loop]]:
    """Makes the loops of tables; their rows are scored in this process."""
    monkeypatch.setattr(score, "step_pool", lambda *arguments: contextlib.nullcontext(IN_PROCESS))
    late = flights.months(1, 1)[["carrier", "dest", "distance", "late"]].rename(columns={"late": "target"})
    tables = {**TABLES, "flights": ("binary", lambda: late.astype({"distance": float}).reset_index(drop=True))}
    return lambda names: {name: Loop(world, name, tables[name][0], tables[name][1]()) for name in names}


def served(folder: Path, loops: Mapping[str, Loop]) -> Path:
    """Writes a server's config of all loops' models."""
    configs = []
    for name, loop in loops.items():
        saved = loop.world.store.local(loop.serve()) / "saved_model"
        (folder / name).mkdir(parents=True)
        (folder / name / "1").symlink_to(saved)
        configs.append(f'config {{ name: "{name}" base_path: "{folder / name}" }}')
    (folder / "models.config").write_text(f"model_config_list {{ {' '.join(configs)} }}\n")
    return folder / "models.config"


@campaign("names, windows", (["texts"], 4), ([*TABLES, "flights"], 10))
@pytest.mark.server
@pytest.mark.timeout(3600)
def test_same_rows_have_the_same_verdicts(
    names: list[str], windows: int, loops: Any, start_server: Start, tmp_path: Path
) -> None:
    """Scores, verdicts, decisions on retraining and measures by late labels, with a model server as the oracle."""
    made = loops(names)
    config = served(tmp_path / "served", made)
    server = start_server(model_config_file=config, capture_base_path=tmp_path / "asked", capture_roll_seconds=0.2)
    verdicts = set()
    for name, loop in made.items():
        decisions: dict[str, RetrainingDecision | None] = {"scored": None, "asked": None}
        requests: list[str] = []  # one for each window
        for window in range(windows):
            loop.score(window)
            loop.ask(server, window)
            reports = {}
            for way in decisions:
                artifact, reports[way] = loop.watch(way)
                situation = Situation.of(artifact, datetime(2026, 12, 1, tzinfo=UTC))
                decisions[way] = decide(POLICY, situation, decisions[way])
            assert reports["scored"] == reports["asked"], f"{name}, window {window}"
            both = [each for each in decisions.values() if each]  # whose reasons may tell a time
            scored, asked = ((each.outcome, each.why, re.sub(r"\d\d:\d\d", "", each.reason)) for each in both)
            assert scored == asked
            captured = pq.read_table(tmp_path / "asked" / name, columns=["request_id"])["request_id"].unique()
            requests += [each for each in captured.to_pylist() if each not in requests]
            labels = loop.labels(window + 1)
            of_requests = labels.assign(request_id=[requests[each] for each in labels["window"]])
            by_key = loop.measure("scored", labels, keys=["id"], label_time="at", horizon_s=5 * 86_400.0)
            assert by_key == loop.measure("asked", of_requests), f"{name}, labels after window {window}"
            verdicts.add((reports["scored"]["verdict"], scored[0]))
    assert {("stable", "refused"), ("drift", "requested")} <= verdicts
