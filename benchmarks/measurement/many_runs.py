"""A thousand trainings in a real MLflow, for pages that must not grow slow with them.

``python benchmarks/measurement/many_runs.py sqlite:////path/of/mlflow.db <dag_id> --runs 1000``, in the runtime
environment. Rows go in bulk through MLflow's own tables: its client would take minutes.
"""

from __future__ import annotations

import argparse
import math
import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_hops.ml.tracking.client import experiment_id, open_tracking

_DAY_MS = 86_400_000
_OPTIMIZERS = ("adam", "sgd", "rmsprop")


@dataclass(frozen=True)
class _Trial:
    """One training that never was: parameters, and how well it would have gone."""

    number: int
    lr: float
    units: int
    dropout: float
    optimizer: str

    def metrics(self, epoch: int) -> dict[str, float]:
        """Figures of an epoch, counted from 1."""
        goodness = 0.75 - 0.03 * abs(math.log10(self.lr) + 3) - 0.05 * abs(self.dropout - 0.2)
        noise = random.Random(self.number * 1000 + epoch).gauss(0, 0.004)
        auc = goodness - 0.2 * math.exp(-epoch * self.lr * 700) + noise
        return {
            "auc": auc + 0.01,
            "loss": 0.9 - 0.5 * auc,
            "val_auc": auc,
            "val_loss": 0.92 - 0.5 * auc,
            "examples_per_second": 60_000 / (1 + self.units / 128) * (1 + 10 * noise),
        }


def log_many(tracking_uri: str, dag_id: str, runs: int, epochs: int = 10) -> None:
    """Logs trainings of a DAG as the train stage would have.

    Args:
        tracking_uri: MLflow's database: ``sqlite:////…``.
        dag_id: The DAG, which names the experiment.
        runs: How many; every fiftieth failed. The first has ten trials nested in it.
        epochs: Of each.
    """
    from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric, SqlParam, SqlRun, SqlTag

    client = open_tracking(tracking_uri)
    experiment = experiment_id(client, dag_id)
    location = client.get_experiment(experiment).artifact_location
    rows: dict[Any, list[dict[str, Any]]] = {each: [] for each in (SqlRun, SqlParam, SqlTag, SqlMetric)}
    now = int(time.time() * 1000)
    first = uuid.uuid4().hex
    for trial in _trials(runs):
        run = uuid.uuid4().hex if trial.number else first
        began = now - (runs - trial.number) * _DAY_MS // 24
        tags = {
            "hops.dag_id": dag_id,
            "hops.run_id": f"scheduled__{trial.number}",
            "hops.task_id": "train",
            "mlflow.runName": f"{dag_id} scheduled__{trial.number} train",
            **({"mlflow.parentRunId": first} if 0 < trial.number <= 10 else {}),
        }
        params = {"lr": trial.lr, "units": trial.units, "dropout": trial.dropout, "optimizer": trial.optimizer}
        rows[SqlRun].append(
            {
                "run_uuid": run,
                "name": tags["mlflow.runName"],
                "experiment_id": int(experiment),
                "status": "FAILED" if trial.number % 50 == 49 else "FINISHED",
                "start_time": began,
                "end_time": began + 40_000 + trial.units * 100,
                "lifecycle_stage": "active",
                "artifact_uri": f"{location}/{run}/artifacts",
                "user_id": "",
                "source_type": "JOB",
            }
        )
        rows[SqlParam] += [{"run_uuid": run, "key": key, "value": str(value)} for key, value in params.items()]
        rows[SqlTag] += [{"run_uuid": run, "key": key, "value": value} for key, value in tags.items()]
        rows[SqlMetric] += [
            {"run_uuid": run, "key": key, "value": value, "step": epoch, "timestamp": began + epoch * 4000, "is_nan": 0}
            for epoch in range(1, epochs + 1)
            for key, value in trial.metrics(epoch).items()
        ]
    last = [row for row in rows[SqlMetric] if row["step"] == epochs]
    with client._tracking_client.store.ManagedSessionMaker() as session:
        for table, values in {**rows, SqlLatestMetric: last}.items():
            session.bulk_insert_mappings(table, values)


def _trials(count: int) -> Iterator[_Trial]:
    choose = random.Random(7)
    for number in range(count):
        yield _Trial(
            number,
            lr=round(10 ** choose.uniform(-4, -2), 6),
            units=choose.choice((16, 32, 64, 128, 256)),
            dropout=choose.choice((0.0, 0.1, 0.2, 0.3, 0.5)),
            optimizer=choose.choice(_OPTIMIZERS),
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tracking_uri")
    parser.add_argument("dag_id")
    parser.add_argument("--runs", type=int, default=1000)
    given = parser.parse_args()
    log_many(given.tracking_uri, given.dag_id, given.runs)
