"""Reports of the slowest rank of an epoch."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import keras
import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.training.record import RankTimes, SlowestRank, TrainingRecord, read_training, training_of
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.epoch_times import find_slowest
from airflow_hops.ml.training.keras import DistributedOptimizer
from tests.ml.training.trainings import Trainings


def train(context: TrainContext) -> keras.Model:
    """Trains; rank 1 takes 20 ms more for each step."""

    class Slow(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            time.sleep(0.02 * context.rank)

    inputs = keras.Input((2,), name="numeric")
    model = keras.Model({"numeric": inputs}, keras.layers.Dense(1, activation="sigmoid")(inputs))
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.1)), "binary_crossentropy")
    context.fit(model, epochs=3, batch_size=40, callbacks=[Slow()])
    return model


def test_slow_rank_is_named_after_each_epoch(trainings: Trainings, examples: Artifact) -> None:
    model = trainings("test_slowest_rank:train", examples, np=2)
    folder = trainings.store.local(model)
    slowest = json.loads((folder / "training.json").read_text())["slowest"]
    assert [each["rank"] for each in slowest[1:]] == [1, 1], "the first epoch traces the model"
    for each in slowest[1:]:
        assert each["waits_for"] == "computing"
        assert each["computing"] > 0.5 and each["rows"] > 0
        assert each["times"] > 1
    record = read_training(trainings.store, "tests", training_of(trainings.store.manifest(model.uri)))
    assert record is not None and [each.epoch for each in record.slowest] == [1, 2, 3]
    rows = json.loads((folder / "training.json").read_text())["rows_by_rank"]
    for stored, each in zip(record.slowest, slowest, strict=True):
        assert [rank.row_count for rank in stored.ranks] == [rank["train"] for rank in rows]
        assert {rank.host for rank in stored.ranks} == {socket.gethostname()}
        own = stored.ranks[each["rank"]]
        assert (own.computing, own.rows, own.exchange) == (each["computing"], each["rows"], each["exchange"])
    assert stored.ranks[0].exchange > stored.ranks[1].exchange, "the fast rank waits"
    (line,) = [line for line in trainings.lines if line.startswith("epoch 3: slowest is rank 1")]
    assert "times as long as the others without the exchange, and they wait for it" in line


def test_times_of_all_ranks_are_kept_of_the_last_epochs() -> None:
    record = TrainingRecord("0" * 32, "name", "RUNNING", 0)
    for epoch in [*range(1, 13), 12]:
        ranks = (RankTimes("here", 10, 1.0, 0.0, 0.5), RankTimes("there", 5, 1.5, 0.0, 0.0))
        record = record.with_slowest(SlowestRank(epoch, 1, 1.5, 0.0, 0.0, "computing", 1.5, ranks))
    record = TrainingRecord.from_dict(record.to_dict())
    assert [each.epoch for each in record.slowest] == [*range(1, 13)]
    assert [each.ranks for each in record.slowest] == [()] * 2 + [ranks] * 10


@pytest.mark.parametrize(
    ("seconds", "rows", "exchange", "rank", "cause"),
    [
        ([10, 10, 10], [1, 8, 1], [5, 1, 5], 1, "rows"),
        ([10, 10, 10], [1, 1, 1], [5, 5, 1], 2, "computing"),
        ([10, 10], [0, 0], [9, 8], 1, "exchange"),
    ],
)
def test_cause_is_what_takes_most_of_the_slowest_ranks_time(
    seconds: list[float], rows: list[float], exchange: list[float], rank: int, cause: str
) -> None:
    slowest = find_slowest(seconds, rows, exchange)
    assert (slowest["rank"], slowest["waits_for"]) == (rank, cause)
