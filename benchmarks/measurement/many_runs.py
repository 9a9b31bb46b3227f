"""Records of a thousand trainings and of served models, for pages that must not grow slow with them.

``python -m benchmarks.measurement.many_runs STORE <dag_id> --runs 1000 --models 200``
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.models.model_record import ModelEvent, ModelRecord, ServedVersion, write_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.training.record import RunModelVersion, TrainingRecord, TrainingTry, training_id, write_training
from airflow_hops.ml.tracking.curves import Curves

_DAY_MS = 86_400_000
_OPTIMIZERS = ("adam", "sgd", "rmsprop")
_VERSIONS = 200
"""Versions of the first model, each of a training."""


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


def write_many(store: ArtifactStore, dag_id: str, runs: int, epochs: int = 10) -> None:
    """Writes records of trainings of a DAG as the train stage does.

    Args:
        store: The artifact store.
        dag_id: The DAG.
        runs: How many; every fiftieth failed. The first has ten trials.
        epochs: Of each.
    """
    now = int(time.time() * 1000)
    first = ""
    for trial in _trials(runs):
        producer = Producer(dag_id, f"scheduled__{trial.number}", "train")
        run_id = training_id(producer, {}, {})
        first = first or run_id
        began = now - (runs - trial.number) * _DAY_MS // 24
        ended = began + 40_000 + trial.units * 100
        params = {"lr": trial.lr, "units": trial.units, "dropout": trial.dropout, "optimizer": trial.optimizer}
        curves = Curves()
        for epoch in range(1, epochs + 1):
            for name, value in trial.metrics(epoch).items():
                curves.add(name, epoch, value, began + epoch * 4000)
        has_failed = trial.number % 50 == 49
        error = "rank 0 was ended by SIGKILL (it may have used too much memory)" if has_failed else None
        record = TrainingRecord(
            run_id=run_id,
            name=f"{producer.run_id} train",
            status="FAILED" if has_failed else "FINISHED",
            start_time=began,
            end_time=ended,
            dag_run_id=producer.run_id,
            task_id="train",
            params={name: str(value) for name, value in params.items()},
            figures=curves.figures,
            tags={"hops.dag_id": dag_id, "hops.run_id": producer.run_id, "hops.task_id": "train"},
            parent=first if 0 < trial.number <= 10 else None,
            tries=(TrainingTry(1, began, ended, error),),
            cost={"core_s": trial.units / 2, "gpu_s": 0.0},
            versions=(RunModelVersion(_model_name(0), trial.number + 1),) if trial.number < _VERSIONS else (),
        )
        write_training(store, dag_id, record, curves.content())


def write_models(store: ArtifactStore, dag_id: str, models: int) -> None:
    """Writes the records of served models: the first has 200 versions, the others three.

    Args:
        store: The artifact store.
        dag_id: The DAG of the first model; the others' are named for theirs.
        models: How many.
    """
    now = datetime.now(UTC)
    for model in range(models):
        record = ModelRecord()
        dag = f"{dag_id}_{model:03}" if model else dag_id
        versions = 3 if model else _VERSIONS
        for version in range(1, versions + 1):
            time = (now - timedelta(hours=versions - version)).isoformat(timespec="milliseconds")
            by = {"dag_id": dag, "run_id": f"scheduled__{version - 1}", "task_id": "deploy"}
            uri = store.uri(dag, by["run_id"], "train", "model")
            artifact = Artifact(uri, "model", f"{model * _VERSIONS + version:064x}")
            served = replace(ServedVersion.of(artifact, version, f"/models/{version}", 100), since=time)
            facts = {"by": by, "traffic": {version: 100}, "fingerprint": artifact.fingerprint, "model": uri}
            event = ModelEvent(time, "deployed", version, "better than the champion", **facts)
            record = ModelRecord(champion=served, history=(*record.history, event))
        write_record(store, _model_name(model), record)


def _model_name(number: int) -> str:
    return f"many_{number:03}"


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
    parser.add_argument("store", help="its URI")
    parser.add_argument("dag_id")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--models", type=int, default=0)
    given = parser.parse_args()
    write_many(ArtifactStore(given.store), given.dag_id, given.runs)
    write_models(ArtifactStore(given.store), given.dag_id, given.models)
