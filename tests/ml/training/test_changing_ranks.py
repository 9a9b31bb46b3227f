"""Trainings whose tries have different numbers of ranks: each row is seen once an epoch."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, Preempted
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.keras import DistributedOptimizer
from airflow_hops.ml.training.reader import open_split
from airflow_hops.ml.training.reader.units import Rest
from tests.ml.training.trainings import Trainings

RANKS = [3, 2]
EPOCHS = 2


@pytest.mark.parametrize("memory_bytes", [None, 0], ids=["in memory", "streamed"])
@pytest.mark.parametrize("seed", [3, None], ids=["shuffled", "in order"])
def test_each_row_is_read_once_by_changing_ranks(numbers: Path, memory_bytes: int | None, seed: int | None) -> None:
    seen: list[int] = []
    parts: tuple[tuple[int, int], ...] = ()
    for ranks, steps in [(4, 5), (3, 1), (2, 9), (4, 10)]:
        done = sum(steps for _, steps in parts)
        counts = []
        for rank in range(ranks):
            reader = open_split(
                numbers, ["number"], rank=rank, size=ranks, memory_bytes=memory_bytes, buffer_bytes=1 << 10
            )
            rest = Rest(7, parts) if parts else None
            batches = list(reader.batches(40, shuffle_seed=seed, epoch=7, first_step=done, rest=rest))
            assert len(batches) == 25 - done
            seen += [int(number) for (columns,) in batches[:steps] for number in columns["number"]]
            counts.append({len(columns["number"]) for (columns,) in batches})
        assert all(abs(40 / ranks - count) < 2 for each in counts for count in each)
        parts = (*parts, (ranks, steps))
    assert sorted(seen) == list(range(1000))


def test_same_ranks_resume_in_the_middle_of_a_rest(numbers: Path) -> None:
    reader, rest = open_split(numbers, ["number"], rank=1, size=3), Rest(0, ((4, 5), (2, 3)))
    whole = [columns["number"].tolist() for (columns,) in reader.batches(40, shuffle_seed=1, first_step=8, rest=rest)]
    resumed = [
        columns["number"].tolist() for (columns,) in reader.batches(40, shuffle_seed=1, first_step=12, rest=rest)
    ]
    assert resumed == whole[4:]


def test_rest_with_too_few_rows_is_refused(numbers: Path) -> None:
    reader = open_split(numbers, ["number"], rank=0, size=8)
    with pytest.raises(BadInput, match=r"8 ranks cannot share the 4 rows that 1 steps of the epoch"):
        next(reader.batches(4, first_step=249, rest=Rest(0, ((4, 249),))))


def network() -> Any:
    inputs = keras.Input((2,), name="numeric")
    return keras.Model({"numeric": inputs}, keras.layers.Dense(1, activation="sigmoid")(inputs))


def train(context: TrainContext) -> keras.Model:
    """Trains; each try but the last is asked to end in the middle of an epoch."""
    notes = Path(context.params["notes"])
    attempt = len(list(notes.glob("*")))

    class Notice(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1 and attempt < len(RANKS) - 1:
                (notes / str(attempt)).touch()
                os.kill(os.getpid(), signal.SIGTERM)

    model = network()
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.1)), "binary_crossentropy")
    context.fit(model, epochs=EPOCHS, batch_size=40, callbacks=[Notice()] if context.rank == 0 else [])
    (context.checkpoint_dir.parent / "rate.json").write_text(json.dumps(float(model.optimizer.learning_rate.numpy())))
    return model


def read(context: TrainContext) -> keras.Model:
    """Notes the rows of an epoch, in a loop of one's own; each try but the last is asked to end."""
    notes = Path(context.params["notes"])
    attempt = len(list(notes.glob("try-*")))
    model = network()
    start = context.restore(model)
    context.begin_epoch(0)
    rows: list[list[float]] = []
    batches = context.batches("train", 40, shuffle=True, first_step=start.batch)
    for step, (features, _) in enumerate(batches, start.batch + 1):
        rows += features["numeric"].tolist()
        (notes / f"rows-{attempt}-{context.rank}.json").write_text(json.dumps(rows))
        if context.rank == 1 and step == start.batch + 2 and attempt < len(RANKS) - 1:
            (notes / f"try-{attempt}").touch()
            os.kill(os.getpid(), signal.SIGTERM)
        if context.should_checkpoint(every=0):
            context.checkpoint(model, step=step, batch=step)
    context.checkpoint(model, step=step, epoch=1)
    return model


@pytest.fixture(scope="module")
def attempt(trainings: Trainings, two_files: Artifact) -> Callable[..., Path]:
    """Tries a training with a number of slots; returns the model's folder."""

    def attempt(function: str, slots: int, notes: Path) -> Path:
        services = {"ranks": json.dumps({"kind": "local", "slots": slots})}
        settings: dict[str, Any] = {"np": [2, 3], "notes": str(notes), "run_id": function, "services": services}
        return trainings.store.local(trainings(f"test_changing_ranks:{function}", two_files, **settings))

    return attempt


def test_each_row_is_seen_once_in_a_training(attempt: Any, tmp_path: Path) -> None:
    for slots in RANKS[:-1]:
        with pytest.raises(Preempted, match=r"ended after step \d+ of epoch 1"):
            attempt("read", slots, tmp_path)
    attempt("read", RANKS[-1], tmp_path)
    rows = [tuple(row) for file in tmp_path.glob("rows-*") for row in json.loads(file.read_text())]
    assert len(list(tmp_path.glob("rows-*"))) == sum(RANKS)
    assert len(rows) == len(set(rows)) == 391


def test_training_goes_on_with_as_many_ranks_as_slots(attempt: Any, trainings: Trainings, tmp_path: Path) -> None:
    for slots in RANKS[:-1]:
        with pytest.raises(Preempted, match=r"ended after step \d+ of epoch 1"):
            attempt("train", slots, tmp_path)
        assert f"np is 2 to 3: trains on {slots}, as there are slots" in trainings.lines
    with pytest.raises(BadInput, match="np is 2, but there are only 1 slots"):
        attempt("train", 1, tmp_path)
    folder = attempt("train", RANKS[-1], tmp_path)
    summary = json.loads((folder / "training.json").read_text())
    assert summary["ranks"] == 2 and summary["synchronized"]
    assert summary["guard"]["rows"] == [391] * EPOCHS, "the guard counts every row of an epoch once"
    assert summary["resumed_at_step"] > 0
    assert json.loads((folder / "rate.json").read_text()) == pytest.approx(0.1)


@pytest.mark.parametrize("memory_bytes", [None, 0], ids=["in memory", "streamed"])
def test_each_row_is_read_once_from_unequal_shares(numbers: Path, memory_bytes: int | None) -> None:
    shares = (613, 26, 361)

    def read(rank: int, size: int, rest: Rest | None, steps: slice) -> Iterator[int]:
        reader = open_split(numbers, ["number"], rank=rank, size=size, memory_bytes=memory_bytes, buffer_bytes=1 << 10)
        reader.divide(shares if rest is None else ())
        first = rest.steps if rest else 0
        batches = list(reader.batches(40, shuffle_seed=1, epoch=5, first_step=first, rest=rest))
        own, _ = reader.step_rows(40, rest)
        assert [len(columns["number"]) for (columns,) in batches] == own.tolist() and min(own) > 0
        for (columns,) in batches[steps]:
            yield from columns["number"].tolist()

    whole = [number for rank in range(3) for number in read(rank, 3, None, slice(None))]
    assert sorted(whole) == list(range(1000))
    begun = [number for rank in range(3) for number in read(rank, 3, None, slice(7))]
    rest = Rest(5, ((3, 7),), shares)
    ended = [number for rank in range(2) for number in read(rank, 2, rest, slice(None))]
    assert sorted([*begun, *ended]) == list(range(1000))


def test_shares_of_other_rows_are_refused(numbers: Path) -> None:
    with pytest.raises(BadInput, match=r"holds 1000 rows for 2 ranks, but the shares have \(500, 501\)"):
        open_split(numbers, ["number"], rank=0, size=2).divide((500, 501))
