"""The callbacks of :meth:`airflow_hops.hops.context.TrainContext.fit`: guards first, then what records an epoch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import keras

from airflow_hops.hops.keras import (
    GUARD_EVERY_STEPS,
    BroadcastCallback,
    Guard,
    MetricAverageCallback,
    NanStopCallback,
    StatisticsAverageCallback,
)

if TYPE_CHECKING:
    from airflow_hops.hops.context import TrainContext


def guarding_callbacks(context: TrainContext, checksum_every_steps: int | None) -> list[Any]:
    """Equal weights at the start, finite loss, metrics over all ranks, equal weights all along."""
    guard = Guard(GUARD_EVERY_STEPS if checksum_every_steps is None else checksum_every_steps)
    guard.checksums = context.checksums
    return [
        BroadcastCallback(),
        NanStopCallback(),
        _EpochCallback(context),
        StatisticsAverageCallback(),
        MetricAverageCallback(),
        guard,
    ]


def recording_callbacks(context: TrainContext, epochs: int, *, rows: int = 0) -> list[Any]:
    """Progress, event files and checkpoints.

    Args:
        context: The rank's.
        epochs: How many there will be.
        rows: Rows of an epoch over all ranks, for the examples per second.
    """
    return [_RecordCallback(context, epochs, rows)]


class _EpochCallback(keras.callbacks.Callback):
    """Tells the data which epoch it is, and the watcher that the rank lives."""

    def __init__(self, context: TrainContext) -> None:
        super().__init__()
        self._context = context
        self._where = ""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._context.begin_epoch(epoch)
        self._where = f"epoch {epoch + 1}"
        self._context.on_alive(f"{self._where} begins")

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._context.on_alive(f"{self._where} step {batch + 1}")

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._context.on_alive(f"{self._where} evaluation step {batch + 1}")


class _RecordCallback(keras.callbacks.Callback):
    """Reports an epoch, writes its events and its checkpoint, and lets all ranks stop together."""

    def __init__(self, context: TrainContext, epochs: int, rows: int) -> None:
        super().__init__()
        self._context, self._epochs, self._rows = context, epochs, rows
        self._began = 0.0
        self._trained_until = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._began = self._trained_until = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._trained_until = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        context, metrics = self._context, dict(logs or {})
        seconds = self._trained_until - self._began
        context.seconds += seconds
        context.rows_trained += self._rows
        if context.rank == 0:
            context.on_message(
                "progress",
                text=f"epoch {epoch + 1} of {self._epochs}",
                fraction=(epoch + 1) / self._epochs,
                metrics={
                    **metrics,
                    **({"examples_per_second": self._rows / seconds} if seconds and self._rows else {}),
                },
            )
            context.write_events("train", epoch, {n: v for n, v in metrics.items() if not n.startswith("val_")})
            validation = {n.removeprefix("val_"): v for n, v in metrics.items() if n.startswith("val_")}
            if validation:
                context.write_events("validation", epoch, validation)
        context.checkpoint(self.model, epoch + 1, {**metrics, "seconds": seconds})
        if self.model.stop_training:
            context.request_stop()
        self.model.stop_training = context.should_stop()
