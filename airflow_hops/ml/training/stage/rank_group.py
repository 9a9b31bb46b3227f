"""Groups of ranks of frameworks other than TensorFlow; extensions add them (``airflow_hops.strategies``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import STRATEGIES, load_class
from airflow_hops.ml.training.gang import Channel, Placement


class RankGroup(ABC):
    """A rank's membership in the process group of a framework.

    A subclass is registered as an entry point of the group ``airflow_hops.strategies``, under the name of the strategy.
    Each rank's process creates it before it calls the user's function, which may return a model of any registered
    framework. Ranks can exchange values with :class:`~airflow_hops.ml.training.gang.rendezvous.SharedValues`.

    Args:
        placement: Placement of this rank.
        channel: Channel to the watching process.
        threads: Threads of the framework's operations.

    Raises:
        BadInput: the framework is missing, or the ranks do not fit together.
    """

    @abstractmethod
    def __init__(self, placement: Placement, channel: Channel, threads: int) -> None: ...

    @abstractmethod
    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Returns the numbers of each rank, by rank; every rank must call it with equally many."""

    @abstractmethod
    def check_weights(self, model: Any) -> str:
        """Returns the checksum of the state that predictions depend on, which must be equal on all ranks.

        Args:
            model: The model that the user's function returned on this rank.

        Raises:
            BadInput: it is not a model of this framework, the ranks differ, or a weight contains NaN or infinity.
        """

    def unwrap(self, model: object) -> object:
        """Returns the model to export, without the wrapper that the framework adds; every rank must call it."""
        return model

    def save(self, model: object, optimizer: object, folder: Path, others: Mapping[str, object]) -> None:
        """Writes the state of a model, its optimizer and other objects; every rank must call it.

        Args:
            model: The model.
            optimizer: Its optimizer, or None.
            folder: An empty folder of this rank; afterwards, rank 0's holds the files of all.
            others: Further objects with a state, such as schedulers, by name.

        Raises:
            BadInput: it is not a model of this framework, or a weight contains NaN or infinity.
        """
        raise BadInput(f"context.checkpoint does not support {type(self).__name__}; use context.checkpoint_files")

    def load(self, model: object, optimizer: object, folder: Path | None, others: Mapping[str, object]) -> None:
        """Reads the state that :meth:`save` has written, with any number of ranks; every rank must call it.

        A first try calls it as well, with no folder.

        Raises:
            BadInput: it is the state of another model, or something has a state that no checkpoint would hold.
        """
        if folder is not None:
            raise BadInput(f"context.restore does not support {type(self).__name__}; use context.resumed_files")

    @abstractmethod
    def finish(self) -> None:
        """Leaves the group after all ranks have finished."""


def rank_group(strategy: str) -> type[RankGroup]:
    """Returns the class of a registered strategy.

    Raises:
        BadInput: it is not registered, cannot be imported, or is not a subclass of :class:`RankGroup`.
    """
    return load_class(STRATEGIES, strategy, RankGroup)  # type: ignore[type-abstract]
