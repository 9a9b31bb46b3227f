"""The span of data that a retraining learns from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from airflow_hops.core.contract.retraining.parts import Part


@dataclass(frozen=True)
class TrainingWindow(Part):
    """The start of the training data; it ends with the compared data."""

    def start(self, at: datetime, changed: datetime | None) -> datetime | None:
        """The first moment of the window, None for where the pipeline's own begins.

        Args:
            at: Time of the decision: the end of the compared data.
            changed: Start of the first comparison of the present run of drifted ones, None if nothing drifts.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Expanding(TrainingWindow):
    """All data from the start that the pipeline sets itself: the most rows, the new among them a shrinking share."""

    kind: ClassVar[str] = "expanding"

    def start(self, at: datetime, changed: datetime | None) -> datetime | None:
        """None: the pipeline's own start."""
        return None


@dataclass(frozen=True)
class Sliding(TrainingWindow):
    """The newest data: forgets what is older, and so follows slow drift at the price of fewer rows.

    Attributes:
        length: How far back it goes.

    Raises:
        BadInput: ``length`` is not above 0.
    """

    length: timedelta
    kind: ClassVar[str] = "sliding"

    def __post_init__(self) -> None:
        self._duration(length=self.length)

    def start(self, at: datetime, changed: datetime | None) -> datetime | None:
        """``length`` before the end."""
        return at - self.length


@dataclass(frozen=True)
class SinceChange(TrainingWindow):
    """The data since the change: from the start of the first comparison of the present run of drifted ones.

    The moment of an abrupt change is known only to within one comparison. Where nothing drifts (a retraining for its
    age), it is the pipeline's own window.
    """

    kind: ClassVar[str] = "since_change"

    def start(self, at: datetime, changed: datetime | None) -> datetime | None:
        """``changed``."""
        return changed
