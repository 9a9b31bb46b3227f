"""Unequal shares of the rows for the ranks, as an extension divides them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_hops.ml.training.reader import SplitReader
    from airflow_hops.ml.training.session import Session


class RowShares(AbstractContextManager[Any], ABC):
    """Divides the rows of a split among the ranks anew for each epoch of ``fit``, within its ``with`` block.

    Args:
        session: The training on this rank.
        model: The compiled model.
        split: The split.
        batch_size: Rows of a step over all ranks.
        columns: Features to read; None for all.

    Attributes:
        reader: Reader of this rank's rows.
    """

    reader: SplitReader

    @abstractmethod
    def __init__(
        self, session: Session, model: Any, split: str, batch_size: int, columns: Sequence[str] | None
    ) -> None: ...

    @abstractmethod
    def begin(self, first_batch: int) -> bool:
        """Divides the rows as the position says, for an epoch from a batch on; returns whether the share is another."""

    @abstractmethod
    def weight(self) -> float:
        """Returns this rank's part of the rows since the first batch, as a multiple of an equal part."""

    @abstractmethod
    def note(self, batch: int) -> None:
        """Notes the time after an execution, which ends with a batch of the epoch."""

    @abstractmethod
    def row_seconds(self) -> float:
        """Returns the seconds of a row in this epoch, without the exchange; 0 if unknown."""

    @abstractmethod
    def decide(self, row_seconds: Sequence[float]) -> None:
        """Sets the shares of the next epoch from the ranks' :meth:`row_seconds` in this one; the same on all ranks."""
