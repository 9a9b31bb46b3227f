"""A shop whose model is watched: its training, its model, and windows of its captured requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.capture_layout import name_time
from airflow_hops.extensions.rehearsal.core.rehearsal import REPORT_FILE, Rehearsal
from airflow_hops.extensions.rehearsal.ml import stage
from tests.ml.world import World

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
PLANS = ["basic", "plus", "family", "business"]


def draw(random: np.random.Generator, rows: int) -> pa.Table:
    """Draws customers with the label ``left``."""
    tenure = random.normal(24, 6, rows)
    plan = random.choice(PLANS, rows, p=[0.5, 0.3, 0.15, 0.05])
    amount = np.exp(random.normal(3, 1, rows)).round(2)
    calls = random.poisson(3, rows)
    risk = 1 / (1 + np.exp(0.15 * (tenure - 24) - 0.5 * (plan == "plus") - 0.2 * calls + 0.6))
    columns = {"tenure": tenure.astype(np.float32), "plan": plan, "amount": amount.astype(np.float32), "calls": calls}
    return pa.table({**columns, "left": (random.random(rows) < risk).astype(np.int64)})


def serve(tenure: Any, plan: Any, amount: Any, calls: Any) -> Mapping[str, Any]:
    """Predicts as the customers are drawn; ``amount`` is not used."""
    import tensorflow as tf

    plus = tf.cast(tf.equal(plan, "plus"), tf.float32)
    unused = tf.where(tf.math.is_nan(amount), 0.0, 0.0 * amount)
    logit = 0.15 * (tenure - 24) - 0.5 * plus - 0.2 * tf.cast(calls, tf.float32) + 0.6 + unused
    return {"probability": 1 / (1 + tf.exp(logit))}


class Shop:
    """The shop's artifacts: a deployed model ``churn``, version 1, and folders of captured requests."""

    def __init__(self, world: World, rows: int = 8_000, draw: Callable[..., pa.Table] = draw) -> None:
        import tensorflow as tf

        self.world, self.draw = world, draw
        random = np.random.default_rng(1)
        splits = {"train": draw(random, rows), "eval": draw(random, rows)}
        described = world.described(world.examples(splits, label="left", problem="binary"))
        types = {"tenure": tf.float32, "plan": tf.string, "amount": tf.float32, "calls": tf.int64}
        statistics, schema = described["statistics"], described["schema"]
        self.model: Artifact = world.served_function(
            serve, types, features=[*types], label="left", problem="binary", statistics=statistics.uri,
            statistics_fingerprint=statistics.fingerprint, schema=schema.uri,
        )  # fmt: skip
        self.statistics, self.schema = statistics, schema
        self.record = world.deploy(self.model, name="churn")

    def rehearse(self, base: Path | None, **options: Any) -> Rehearsal:
        """Runs a rehearsal, and returns its report."""
        services = {} if base is None else {"serving_capture_path": str(base)}
        artifact = self.world.run(stage, kind="rehearsal", services=services, model_name="churn", **options)
        return Rehearsal.from_dict(self.world.read(artifact, REPORT_FILE))

    def captured(
        self, windows: int, rows: int, *, seed: int = 2, change: Callable[..., pa.Table] | None = None
    ) -> Path:
        """Writes a file of captured requests for each day; returns the capture base path."""
        base = self.world.folder / f"captured-{seed}-{windows}-{rows}"
        random = np.random.default_rng(seed)
        for day in range(windows):
            table = self.draw(random, rows).drop(["left"])
            table = table if change is None else change(table, day)
            write_captured(base, table, FIRST + timedelta(days=day))
        return base


def write_captured(base: Path, table: pa.Table, at: datetime) -> None:
    """Writes rows as the server captures them for the model ``churn``."""
    rows = len(table)
    columns = {
        "request_id": [f"{at:%Y%m%d}-{row}" for row in range(rows)], "row": [0] * rows, "model": ["churn"] * rows,
        "version": np.ones(rows, np.int64), "captured_at": pa.array([at] * rows, pa.timestamp("us", "UTC")),
    }  # fmt: skip
    inputs = {f"input.{name}": table[name] for name in table.column_names}
    path = base / "churn" / f"{name_time(at)}-v1-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({**columns, **inputs}), path)
