"""A training on one rank in one try: the parts that the context, ``fit`` and the callbacks share; its event files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.ml.training.checkpoints import Checkpoint
from airflow_hops.ml.training.preemption import Preemption
from airflow_hops.ml.training.rank import Rank
from airflow_hops.ml.training.shares import ExamplesSource, Shares
from airflow_hops.ml.training.training_state import TrainingState

if TYPE_CHECKING:
    from airflow_hops.ml.models.champion import Champion
    from airflow_hops.ml.training.keras import Guard


@dataclass
class Session:
    """A training on one rank in one try.

    Attributes:
        rank: The rank.
        options: Options of the training.
        source: The examples.
        output: Rank 0's folder, for ``checkpoints/``, which outlives this try, and ``tensorboard/``.
        resumed_from: The checkpoint of an earlier try, or None.
        champion: The model to continue from, or None.
        data: This rank's rows.
        state: Position and state of the training, for checkpoints.
        events: Rank 0's TensorBoard event files.
        preemption: Whether the training is to end since its machine is taken away.
        is_stop_requested: Whether this rank has asked all to stop.
        fits: Calls of ``fit`` so far.
        first_batch: First batch of the current ``fit``, in a resumed epoch.
        seconds: Seconds of the epochs of this try; those of exchanging are in ``exchange_seconds``, those of
            waiting for rows in ``waited_seconds``.
        rows_trained: Rows of these epochs, over all ranks.
        slowest: The slowest rank of each epoch, on rank 0.
        guards: The guards of this try's trainings.
    """

    rank: Rank
    options: TrainingOptions
    source: ExamplesSource
    output: Path
    resumed_from: Checkpoint | None = None
    champion: Champion | None = None
    is_stop_requested: bool = False
    fits: int = 0
    first_batch: int = 0
    seconds: float = 0.0
    exchange_seconds: float = 0.0
    waited_seconds: float = 0.0
    rows_trained: int = 0
    slowest: list[dict[str, Any]] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    data: Shares = field(init=False)
    state: TrainingState = field(init=False)
    events: EventFiles = field(init=False)
    preemption: Preemption = field(init=False)
    _stop_checks: int = field(default=0, init=False)
    _is_stop_agreed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        rank, options = self.rank, self.options
        self.state = TrainingState(rank, options, self.output / "checkpoints", self.resumed_from)
        self.data = Shares(rank, options.seed, self.source, self.state)
        self.events = EventFiles(self.output / "tensorboard")
        self.preemption = Preemption(rank.gather)

    def join(self) -> None:
        """Initializes Horovod in a training of one process, because Keras's callbacks query it."""
        from airflow_hops.ml.training.collectives import hvd

        if self.rank.size == 1 and self.rank.group is None and not hvd.is_initialized():
            hvd.init()

    def should_stop(self, every: int) -> bool:
        """Returns whether any rank has asked to stop; the ranks exchange it once in ``every`` calls."""
        if self._stop_checks == 0:
            self.rank.channel.send("heeds_stop")
        if self._stop_checks % every == 0:
            self._is_stop_agreed = self.rank.any(self.is_stop_requested)
        self._stop_checks += 1
        return self._is_stop_agreed

    def close(self) -> None:
        """Waits for the last checkpoint, and closes the event files.

        Raises:
            HopsError: the checkpoint could not be written.
        """
        self.events.close()
        self.state.close()


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
