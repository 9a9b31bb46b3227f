"""Numbers of ranks that are chosen when a training starts: by its slots, or by measuring its first steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.contract.training import AUTO, HOROVOD
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.ml.stages.train.training import Training, run_ranks
from airflow_hops.ml.training.checkpoints import Checkpoint
from airflow_hops.ml.training.gang import LocalRanks, RankLauncher

MIN_GAIN = 1.1
"""Minimum speed-up for more ranks, since other tasks need cores, too."""


def ranks_for_slots(launcher: RankLauncher, least: int, most: int) -> int:
    """Returns the largest number of ranks, of ``least`` to ``most``, that the launcher has slots for.

    Raises:
        BadInput: it has slots for fewer than ``least``, or there is no such number.
        HopsError: a host cannot be reached, or slots do not come in time.
    """
    if not 1 <= least <= most:
        raise BadInput(f"np is ({least}, {most}), expected the least and the most ranks, 1 or more")
    launcher.await_slots(least, most)
    for ranks in range(most, least, -1):
        with contextlib.suppress(BadInput):
            launcher.place(ranks)
            return ranks
    launcher.place(least)
    return least


def with_chosen_ranks(training: Training, resume_from: Checkpoint | None, say: Callable[[str], None]) -> Training:
    """Sets a training's number of ranks to the fastest on this machine.

    One rank, two, four and so on up to the machine's slots train for about a second each, from the start, and leave
    no output. The search ends at the first number that is not :data:`MIN_GAIN` times as fast as the one before. Since
    ``batch_size`` counts the rows of all ranks, any number of them trains the same model.

    Args:
        training: With any number of ranks.
        resume_from: Checkpoint to resume from; its number of ranks determines the order of rows, and is used if this
            machine has enough slots.
        say: Called with messages about measurements and the choice.

    Raises:
        BadInput: the ranks are not Horovod's on this machine, or are to be deterministic; or the user's code does not
            call ``context.fit``.
        HopsError: a measured rank died, stalled or failed.
    """
    options, launcher = training.options, training.launcher
    if not isinstance(launcher, LocalRanks) or options.strategy != HOROVOD:
        raise BadInput(
            f"np is {AUTO!r}, which measures Horovod ranks of the worker's machine, but strategy is "
            f"{options.strategy!r} and ranks run by {type(launcher).__name__}; give np a number"
        )
    if options.deterministic:
        raise BadInput(
            f"np is {AUTO!r} and deterministic is True, but the number of ranks, which a measurement decides, changes "
            "the weights; give np a number"
        )
    if resume_from is not None:
        ranks = min(resume_from.ranks, launcher.slots)
        why = "as the checkpoint"
        if ranks < resume_from.ranks:
            why = f"all slots of this machine; the checkpoint is of {resume_from.ranks}"
        say(f"np={AUTO!r}: resumes on {_count(ranks)}, {why}")
        return replace(training, options=replace(options, np=ranks))
    rates: dict[int, float] = {}
    chosen = ranks = 1
    while ranks <= launcher.slots:
        say(f"np={AUTO!r}: measures {_count(ranks)}")
        try:
            rate, most_ranks = _measure(training, ranks)
        except HopsError as error:
            raise type(error)(f"while np={AUTO!r} measured {_count(ranks)}: {error}") from error
        if rate is None:
            break
        rates[ranks] = rate
        if ranks > 1 and rate < MIN_GAIN * rates[chosen]:
            break
        chosen, ranks = ranks, 2 * ranks if ranks == launcher.slots else min(2 * ranks, launcher.slots)
        if ranks > most_ranks:
            break
    result = ", ".join(f"{_count(ranks)}: {rate:,.0f} rows a second" for ranks, rate in rates.items())
    say(f"np={AUTO!r}: {result or 'the training is too short to measure'}; trains on {_count(chosen)}")
    return replace(training, options=replace(options, np=chosen), rates=rates)


def _measure(training: Training, ranks: int) -> tuple[float | None, int]:
    """Returns rows per second (None if the training is too short to measure), and the maximum number of ranks."""
    options = replace(training.options, np=ranks, timeline=False, checkpoint_every_steps=0)
    with temporary_folder("measured") as folder:
        measured = replace(training, options=options, output=folder, resume_from=None)
        first = run_ranks(measured, "airflow_hops.ml.stages.train.rank_program:measure_rank")[0]
    return first["rows_per_second"], first["most_ranks"]


def _count(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"
