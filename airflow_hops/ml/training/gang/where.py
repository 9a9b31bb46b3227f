"""Launchers of a step's ranks, from the description of their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_hops.core.training.rank_places import LOCAL, place_of
from airflow_hops.ml.step.context import StepContext, resolve
from airflow_hops.ml.training.gang.crew import RankLauncher

Where = Mapping[str, Any]
"""The place of ranks: ``kind``, the name of a :class:`.RankPlace`, and its options."""


def rank_launcher(where: Where | None, context: StepContext, *, cpu_ranks: int = 0) -> RankLauncher:
    """Returns the launcher of ranks for an operator's ``where``.

    Args:
        where: :meth:`airflow_hops.core.training.rank_places.RankPlace.where`; None for all slots of this machine.
        context: Context of the step, which for ranks on Spark was launched with spark-submit. It must not have started
            a thread.
        cpu_ranks: Number of ranks without a GPU.

    Raises:
        BadInput: the place is not registered, or cannot be used.
    """
    where = where or {"kind": LOCAL}
    options = {name: value for name, value in where.items() if name != "kind"}
    launcher: RankLauncher = resolve(place_of(where).launcher)(context, cpu_ranks=cpu_ranks, **options)
    return launcher
