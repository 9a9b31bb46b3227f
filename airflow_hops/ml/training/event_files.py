"""TensorBoard event files of a training: scalars by step, and the metrics of its epochs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class EventFiles:
    """The event files in a folder with a subfolder for each run, created at the first write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}
        self._epochs_written = 0

    def write(self, run: str, step: int, metrics: Mapping[str, float]) -> None:
        """Writes scalars."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if run not in self._writers:
            self._writers[run] = EventFileWriter(str(self._folder / run))
        for name, value in metrics.items():
            event = Event(wall_time=time.time(), step=step, summary=scalar_pb(name, np.float32(value)))
            self._writers[run].add_event(event)
        self._writers[run].flush()

    def write_epochs(self, history: Sequence[Mapping[str, float]]) -> None:
        """Writes the metrics of epochs, from 1, that are not in the files yet, including those of earlier tries."""
        for number in range(self._epochs_written, len(history)):
            metrics = {name: value for name, value in history[number].items() if name != "seconds"}
            validation = {n.removeprefix("val_"): v for n, v in metrics.items() if n.startswith("val_")}
            self.write("train", number + 1, {n: v for n, v in metrics.items() if not n.startswith("val_")})
            if validation:
                self.write("validation", number + 1, validation)
        self._epochs_written = len(history)

    def close(self) -> None:
        """Closes the files."""
        for writer in self._writers.values():
            with contextlib.suppress(Exception):
                writer.close()
