"""Trains with a trial's parameters, and reports to the search."""

from __future__ import annotations

import math
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.forks import take_streams
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.steps.protocol import parse_line
from airflow_hops.extensions.experiments.ml.search.slots import Slot
from airflow_hops.ml.step.context import find_file
from airflow_hops.ml.training.gang import (
    Channel,
    Crew,
    Event,
    LocalRanks,
    Placement,
    RankLauncher,
    Work,
    run_gang,
)
from airflow_hops.ml.training.stage import Training, train_model
from airflow_hops.ml.training.stage.program import hyperparameters, program_call, program_name

_HEED_S = 0.5


@dataclass
class Ending:
    """Request to end a trial, set by a signal handler or another thread.

    Attributes:
        asked: Whether the trial is to end.
        heeded: Whether the user's function has called ``should_stop``, and so returns by itself if asked.
    """

    asked: bool = False
    heeded: bool = False


@dataclass
class EndableRanks(RankLauncher):
    """Ranks that are asked to stop, and ended if their function does not check for that."""

    launcher: RankLauncher
    ending: Ending

    def place(self, np: int) -> list[Placement]:
        """Finds a slot for each rank."""
        return self.launcher.place(np)

    def start(self, placements: Sequence[Placement], work: Work, env: Mapping[str, str]) -> Crew:
        """Starts the ranks."""
        return _EndableCrew(self.launcher.start(placements, work, env), self.ending)


class _EndableCrew(Crew):
    def __init__(self, crew: Crew, ending: Ending) -> None:
        super().__init__(crew.placements)
        self._crew, self._ending, self._told_at = crew, ending, math.inf

    def events(self, timeout_s: float) -> list[Event]:
        if self._ending.asked and self._told_at == math.inf:
            self._told_at = time.monotonic()
            for placement in self.placements:
                self._crew.signal(placement.rank, signal.SIGUSR2)
        if not self._ending.heeded and time.monotonic() > self._told_at + _HEED_S:
            self._told_at = math.inf  # the ranks' last messages are still read
            self._ending.asked = False
            raise HopsError("the search has ended the trial")
        return self._crew.events(timeout_s)

    def signal(self, rank: int, number: int) -> None:
        self._crew.signal(rank, number)

    def end(self) -> None:
        self._crew.end()


LOG_NAME = "trial.log"
_LOG_BYTES = 16_384
_MESSAGE_CHARACTERS = 100_000

TrialEvent = Mapping[str, Any]
"""Event of a trial, with its ``number`` and a ``type``.

``report`` has ``step`` and ``metrics``; ``result``: its ``training.json`` is written; ``error`` has ``message`` and
``retryable``; ``ended``, the last one, has the ``code`` of its process, or the negative number of a signal.
"""


@dataclass(frozen=True)
class Assignment:
    """Task of a trial.

    Attributes:
        slot: Number of its slot; None for the whole machine.
        np: Number of ranks.
        output: Folder to write to; it is created.
    """

    number: int
    slot: int | None
    params: Mapping[str, Any]
    np: int
    output: str


class TrialWork:
    """Trains; created once for all trials, before their processes are forked.

    Args:
        training: Training of every trial, except its parameters and output.
        slots: Slots by number.
    """

    def __init__(self, training: Training, slots: Sequence[Slot]) -> None:
        self._training, self._slots = training, slots

    def train(self, assignment: Assignment, say: Callable[..., None], ending: Ending) -> None:
        """Trains, and passes the ranks' reports, then the ``result`` or the ``error``, to ``say`` as keywords."""
        base = self._training
        # Exports the first trial, too, to find models that cannot be exported before the winner is trained again.
        export = base.options.export or assignment.slot is None or assignment.number == 0
        params = {**base.options.params, **assignment.params}
        options = replace(base.options, params=params, np=assignment.np, export=export)
        launcher = base.launcher if assignment.slot is None else self._slots[assignment.slot][0]
        training = replace(
            base, options=options, output=Path(assignment.output), launcher=EndableRanks(launcher, ending)
        )

        def hear(rank: int, message: Mapping[str, object]) -> None:
            if message["type"] in ("report", "progress"):
                step = message["step"] if message["type"] == "report" else message["epoch"]
                say(type="report", step=step, metrics=reported(message))
            elif message["type"] == "heeds_stop":
                ending.heeded = True

        try:
            train_model(training, on_message=hear)
            say(type="result")
        except Exception as error:
            text = str(error) if isinstance(error, HopsError) else f"{type(error).__name__}: {error}"
            say(type="error", message=text[:_MESSAGE_CHARACTERS], retryable=getattr(error, "retryable", True))
            if not isinstance(error, HopsError):
                traceback.print_exc()

    def train_here(self, assignment: Assignment, say: Callable[..., None]) -> None:
        """Runs :meth:`train` in the trial's own process, on its slot's cores."""
        ending, output = Ending(), Path(assignment.output)
        signal.signal(signal.SIGTERM, lambda *_: setattr(ending, "asked", True))
        output.mkdir(parents=True)
        log = os.open(output / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        take_streams(os.open(os.devnull, os.O_RDONLY), log, log)
        if assignment.slot is not None and (cores := self._slots[assignment.slot][1]):
            os.sched_setaffinity(0, cores)
        self.train(assignment, say, ending)


def last_lines(output: Path) -> str:
    """Returns the last lines of a trial's log: its process's, or its ranks' if it was a thread."""
    files = [output / LOG_NAME] if (output / LOG_NAME).exists() else sorted((output / "logs").glob("rank-*.log"))
    lines = []
    for file in files:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _LOG_BYTES // len(files)))
            lines += [parse_line(line).text for line in stream.read().decode(errors="replace").split("\n")]
    return "\n".join(lines).strip("\n")


def reported(message: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of a message, named like a model's metrics: Keras's ``val_auc`` becomes ``eval_auc``."""
    if message["type"] == "report":
        return dict(message["metrics"])
    return {
        f"eval_{name.removeprefix('val_')}" if name.startswith("val_") else f"train_{name}": value
        for name, value in message["metrics"].items()
    }


def check_program(training: Training, names: Sequence[str] | None, logs: Path) -> None:
    """Checks in a separate process that the user's function exists and accepts the parameters.

    Args:
        training: Training of every trial.
        names: Names of the parameters; None if a function defines the space.
        logs: Folder of the process's log.

    Raises:
        BadInput: the check fails.
    """

    def check(placement: Placement, channel: Channel) -> None:
        options = training.options
        if options.script is not None:
            find_file(options.script, "script")
            return
        with temporary_folder("code") as folder:
            function, values, named = program_call(options, folder, None)
        if names is None:
            return
        program = program_name(options)
        every = dict.fromkeys([*names, *options.params])
        taken = hyperparameters(program, function, values, named, every)
        if taken and (left := [name for name in names if name not in taken]):  # others get them from the context
            raise BadInput(
                f"train function {program!r} takes {', '.join(sorted(taken))}, but not the parameter {left[0]!r} of "
                "the space; add it to the function, or leave it out of the space"
            )

    env = {**training.options.env, "CUDA_VISIBLE_DEVICES": ""}  # leases no GPU
    run_gang(check, 1, logs=logs, launcher=LocalRanks(1), env=env)
