"""Learning rates for many ranks.

N ranks with batches of the same size train like one process with batches N times as large; the learning rate is then
scaled by N, and increased gradually (Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017,
https://arxiv.org/abs/1706.02677, sections 2.1 and 2.2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.collectives import hvd


def scale_learning_rate(learning_rate: Any, size: int | None = None) -> object:
    """Returns the learning rate for several ranks, a number or a schedule: ``size`` times as large.

    Args:
        learning_rate: A number, or a ``keras.optimizers.schedules.LearningRateSchedule``.
        size: Number of ranks; by default Horovod's.

    Example:
        >>> from airflow_hops import scale_learning_rate
        >>> scale_learning_rate(0.25, size=4)
        1.0
    """
    size = hvd.size() if size is None else size
    if isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        return _ScaledSchedule(learning_rate, size)
    return float(learning_rate) * size


@keras.saving.register_keras_serializable("airflow_hops")
class _ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, schedule: Any, size: int) -> None:
        self.schedule, self.size = schedule, size

    def __call__(self, step: Any) -> object:
        return self.schedule(step) * self.size

    def get_config(self) -> dict[str, object]:
        return {"schedule": keras.saving.serialize_keras_object(self.schedule), "size": self.size}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> _ScaledSchedule:
        return cls(keras.saving.deserialize_keras_object(config["schedule"]), config["size"])


class LearningRateSchedule(keras.callbacks.Callback):
    """Sets the learning rate to a multiple of a base, by epoch or by batch.

    Progress is taken from the optimizer's own count of steps, so that a resumed training continues correctly. After
    ``end_epoch``, other callbacks may set the learning rate, such as ``keras.callbacks.ReduceLROnPlateau``.

    Args:
        base: Base learning rate.
        multiplier: A number, or a function of the epochs done (a float if ``staircase`` is False).
        start_epoch: The first epoch whose rate is set, from 0.
        end_epoch: The first epoch whose rate is no longer set; None for never.
        staircase: Whether the rate is constant within an epoch. If not, it is set for every batch or, with
            ``steps_per_execution`` above 1, for every execution.
        steps_per_epoch: Steps of an epoch; by default the number that ``fit`` reports, which is missing for a dataset
            of unknown length. Required if a training resumes within an epoch.

    Example:
        >>> import keras, numpy as np
        >>> from airflow_hops import LearningRateSchedule
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(1.0), "mse")
        >>> schedule = LearningRateSchedule(1.0, lambda epoch: 0.5**epoch)
        >>> _ = model.fit(np.ones((8, 2)), np.ones(8), epochs=3, callbacks=[schedule], verbose=0)
        >>> float(model.optimizer.learning_rate)
        0.25
    """

    def __init__(
        self,
        base: float,
        multiplier: float | Callable[[float], float],
        *,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.base, self.start_epoch, self.end_epoch, self.staircase = base, start_epoch, end_epoch, staircase
        self._multiplier = multiplier if callable(multiplier) else (lambda epoch: multiplier)
        self._steps_per_epoch = steps_per_epoch
        self._epoch = self._first_step = 0
        self._set_until_end = False

    def on_train_begin(self, logs: dict[str, object] | None = None) -> None:
        """Checks that the rate can be set."""
        if isinstance(self.model.optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            raise BadInput(
                f"{type(self).__name__}: the optimizer's learning rate is itself a schedule, which cannot be set; "
                "give the optimizer a number"
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        """Sets the epoch's rate."""
        self._epoch = epoch
        self._first_step = int(self.model.optimizer.iterations.numpy())
        if self.staircase:
            self._set(float(epoch))

    def on_train_batch_begin(self, batch: int, logs: dict[str, object] | None = None) -> None:
        """Sets the batch's rate."""
        if not self.staircase:
            steps = self._steps_per_epoch or self.params.get("steps")
            if not steps:
                raise BadInput(f"{type(self).__name__}: the steps of an epoch are not known; give steps_per_epoch")
            self._set((self._first_step + batch) / steps)

    def _set(self, epoch: float) -> None:
        if epoch < self.start_epoch:
            return
        ended = self.end_epoch is not None and epoch >= self.end_epoch
        if not ended:
            self.model.optimizer.learning_rate = self.base * self._multiplier(epoch)
        elif self._set_until_end and not self.staircase:
            assert self.end_epoch is not None
            self.model.optimizer.learning_rate = self.base * self._multiplier(float(self.end_epoch))
        self._set_until_end = not ended


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate batch by batch from ``base`` to ``base * size`` over the first epochs.

    It follows section 2.2 of Goyal et al. (2017): from rate η to kη for k ranks, by the same amount after every batch.
    Momentum is not corrected for the changing rate (remark 3 of section 2.1), because it changes little within a
    warm-up.

    Args:
        base: Learning rate of one rank.
        epochs: Number of epochs of the warm-up.
        size: Factor by which the rate increases; by default the number of ranks.
        steps_per_epoch: As for :class:`LearningRateSchedule`.
    """

    def __init__(
        self, base: float, epochs: float = 5, *, size: int | None = None, steps_per_epoch: int | None = None
    ) -> None:
        size = hvd.size() if size is None else size
        super().__init__(
            base,
            lambda epoch: 1 + (size - 1) * min(1.0, epoch / epochs),
            end_epoch=epochs,  # type: ignore[arg-type]
            staircase=False,
            steps_per_epoch=steps_per_epoch,
        )
