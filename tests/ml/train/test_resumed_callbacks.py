"""A training that stops within an epoch and is resumed has the weights of one that was not interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest

from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.training.checkpoints import read_checkpoint
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.keras import DistributedOptimizer, LearningRateWarmup
from airflow_hops.ml.training.rank_state import seed_rank
from tests.ml.train.trainings import rank_session

STEPS, EPOCHS = 5, 3


class Stop(keras.callbacks.Callback):
    """Ends this try at a step, or has the training stop after an epoch."""

    def __init__(self, at_step: int | None, after_epoch: int | None) -> None:
        super().__init__()
        self._at_step, self._after_epoch = at_step, after_epoch
        self._steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps += 1
        if self._steps == self._at_step:
            raise InterruptedError

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training |= epoch + 1 == self._after_epoch

    def on_train_end(self, logs: Any = None) -> None:
        if self._at_step == 0:
            raise InterruptedError


def _train(
    examples: Path, folder: Path, callbacks: Callable[[], list[Any]], stop: tuple[int | None, int | None]
) -> tuple[list[list[float]], list[dict[str, float]]]:
    keras.utils.clear_session()
    seed_rank(3, 0)
    checkpoints = sorted(folder.glob("checkpoints/step-*"))
    resumed_from = read_checkpoint(checkpoints[-1]) if checkpoints else None
    session = rank_session(examples, folder, resumed_from=resumed_from, seed=3, checkpoint_every_steps=2)
    context = TrainContext(session)
    numeric = keras.Input((2,), name="numeric")
    model = keras.Model({"numeric": numeric}, keras.layers.Dense(1, "sigmoid")(keras.layers.Dense(4, "tanh")(numeric)))
    optimizer = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.8)
    model.compile(DistributedOptimizer(optimizer), "binary_crossentropy", run_eagerly=True)
    try:
        context.fit(model, epochs=EPOCHS, batch_size=20, callbacks=[*callbacks(), Stop(*stop)])
    finally:
        context.close()
    metrics = [{name: each[name] for name in ("loss", "val_loss")} for each in context.history]
    return [values.ravel().tolist() for values in model.get_weights()], metrics


def _none() -> list[Any]:
    return []


def _swapping() -> list[Any]:
    return [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]


def _warming_up() -> list[Any]:
    return [LearningRateWarmup(0.1, 1, size=4, steps_per_epoch=STEPS)]


CASES: dict[str, tuple[Callable[[], list[Any]], int, int | None]] = {
    "within an epoch": (_none, STEPS + 4, None),
    "after all ranks agreed to stop": (_none, 0, 2),
    "swapped averages, within an epoch": (_swapping, STEPS + 4, None),
    "swapped averages, between epochs": (_swapping, STEPS + 1, None),
    "at the end of a warm-up": (_warming_up, STEPS + 1, None),
}


def _train_all(examples: Path, folder: Path) -> dict[str, list[Any]]:
    """Returns weights and metrics by case, of an uninterrupted training and a resumed one."""
    hvd.init()
    result, wholes = {}, dict[Any, Any]()
    for case, (callbacks, at_step, after_epoch) in CASES.items():
        if (callbacks, after_epoch) not in wholes:
            place = folder / f"whole-{len(wholes)}"
            wholes[callbacks, after_epoch] = _train(examples, place, callbacks, (None, after_epoch))
        with contextlib.suppress(InterruptedError):
            _train(examples, folder / case, callbacks, (at_step, after_epoch))
            raise AssertionError("the training was not interrupted")
        result[case] = [wholes[callbacks, after_epoch], _train(examples, folder / case, callbacks, (None, after_epoch))]
    return result


@pytest.fixture(scope="module")
def trained(
    own_process: Any, write_examples: Any, shared_store: ArtifactStore, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    examples = shared_store.local(write_examples(train=[100], eval=[40]))
    trained: dict[str, list[Any]] = own_process(_train_all, examples, tmp_path_factory.mktemp("resumed"))
    return trained


@pytest.mark.parametrize("case", CASES)
def test_resumed_training_has_the_weights_of_an_uninterrupted_one(trained: dict[str, list[Any]], case: str) -> None:
    (weights, metrics), (resumed, resumed_metrics) = trained[case]
    for mine, other in zip(resumed, weights, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5)
    for mine, other in zip(resumed_metrics, metrics, strict=True):
        assert mine == pytest.approx(other, rel=1e-5)
