"""Groups of ranks that work together by other means than Horovod; extensions add them (``airflow_hops.strategies``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.extensions import STRATEGIES, extensions, load_class
from airflow_hops.core.names import check_known
from airflow_hops.core.training.options import HOROVOD, SINGLE, TrainingOptions
from airflow_hops.ml.training.gang import Channel, Placement


class RankGroup(ABC):
    """A rank's membership in the process group of a framework.

    A subclass is registered as an entry point of the group ``airflow_hops.strategies``, under the name of the strategy.
    Each rank's process creates it before it calls the user's function, which may return a model of any registered
    framework. Ranks can exchange values with :class:`~airflow_hops.ml.training.gang.rendezvous.SharedValues`.

    Args:
        placement: Placement of this rank.
        channel: Channel to the watching process.
        options: Options of the training.
        threads: Threads of the framework's operations.

    Attributes:
        trains_keras: Whether functions return Keras models, as with Horovod, and not those of any framework.
        strategy: The ``tf.distribute.Strategy`` that functions find as ``context.strategy``; None for none.
        is_alone: Whether this is the only rank that runs the user's function; it reads all rows.

    Raises:
        BadInput: the framework is missing, or the ranks do not fit together.
    """

    trains_keras: ClassVar[bool] = False
    strategy: Any = None
    is_alone: bool = False

    @classmethod
    def cpu_ranks(cls, options: TrainingOptions) -> frozenset[int]:
        """Returns the ranks beside the ``np`` that train; they get no GPU. Raises BadInput for unusable options."""
        return frozenset()

    @abstractmethod
    def __init__(self, placement: Placement, channel: Channel, options: TrainingOptions, threads: int) -> None: ...

    def serve(self) -> bool:
        """Returns whether this rank only serves the others, after it has done so until they have finished."""
        return False

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
            BadInput: it is the state of another model or other objects, or a checkpoint could not hold one of these.
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


def group_of(options: TrainingOptions) -> type[RankGroup] | None:
    """Returns the class of a training's groups; None for one process, and for Horovod's ranks.

    Raises:
        BadInput: the strategy is unknown, or not for this number of ranks.
    """
    strategy, np = options.strategy, options.np
    check_known("strategy", strategy, (HOROVOD, SINGLE, *extensions(STRATEGIES)))
    if isinstance(np, bool) or not isinstance(np, int):
        raise InvalidArgument("np", np, ", expected a number of ranks, 1 or more")
    if strategy == SINGLE and np != 1:
        raise InvalidArgument("np", np, f", expected 1, as the strategy is {SINGLE!r}")
    return None if strategy in (HOROVOD, SINGLE) else rank_group(strategy)


def trains_keras(options: TrainingOptions) -> bool:
    """Returns whether a training's function returns a Keras model, and not one of any framework."""
    group = group_of(options)
    return options.strategy == HOROVOD if group is None else group.trains_keras


def cpu_ranks(options: TrainingOptions) -> frozenset[int]:
    """Returns the ranks of a training without a GPU, beside the ``np`` that train."""
    group = group_of(options)
    return frozenset() if group is None else group.cpu_ranks(options)


def all_ranks(options: TrainingOptions) -> int:
    """Returns the number of all ranks of a training."""
    return options.np + len(cpu_ranks(options))
