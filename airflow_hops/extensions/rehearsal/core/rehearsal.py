"""Rehearsals of a monitor: their options, and the report of what it would find, when, and what would slip through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.json_fields import JsonFields, StepOptions
from airflow_hops.core.metrics import Interval

REPORT_FILE = "rehearsal.json"
REHEARSAL = "rehearsal"
"""Kind of the artifact, and of its entry among the model's monitoring reports."""
Rows = Literal["captured", "training"]
FOUND = 0.8
"""Share of the tries in which a change must be found."""


@dataclass(frozen=True)
class RehearsalOptions(StepOptions):
    """Options of a rehearsal, as the arguments of ``RehearseOperator``; durations in seconds.

    Attributes:
        skew: Options of the monitor's comparison; None for those of its newest recorded run, or else the defaults.
        policy: The policy that decides, as JSON; None for the default.

    Raises:
        BadInput: an option is out of range.
    """

    model_name: str
    skew: Mapping[str, Any] | None = None
    policy: Mapping[str, Any] | None = None
    every_s: float | None = None
    tries: int = 60
    features: Sequence[str] | None = None
    rows: Rows | None = None
    seed: int = 0

    WINDOWS: ClassVar[int] = 30
    """Most windows that are read; further tries have rows of two of them."""

    def __post_init__(self) -> None:
        if self.every_s is not None and self.every_s <= 0:
            raise BadInput(f"every is {self.every_s} s, expected above 0")
        if self.tries < 5:
            raise InvalidArgument("tries", self.tries, ", expected at least 5")
        if self.rows not in (None, "captured", "training"):
            raise InvalidArgument("rows", self.rows, ", expected 'captured', 'training' or None")


@dataclass(frozen=True)
class PowerAtSize(JsonFields):
    """Share of the tries in which a change of one size is found, with its 95% interval."""

    size: float
    power: Interval


@dataclass(frozen=True)
class RehearsedFault(JsonFields):
    """A fault that was planted into a feature's values, in growing sizes.

    Attributes:
        feature: The feature; two features joined by " and " if both change; empty if whole rows do.
        fault: Kind of the fault, such as ``shift`` or ``missing``.
        unit: Unit of sizes: ``sd`` (standard deviations of the training data), ``factor``, or ``share`` of the rows.
        size: Smallest size that is found in 80% of the tries; None if no size is.
        interval: 95% interval of ``size``; an end is None beyond the smallest or largest size that was tried.
        largest: Largest size that was tried.
        words: The change of that size (or the largest) in words, such as "shift of 0.4 standard deviations".
        fault_from: Size from which on it is called a fault of the pipeline; None if no size is.
        curve: Power by size, ascending.
        after: Comparisons until the monitor says so, in 80% of the starts; None if it does not within the windows.
        verdict: Verdict of most comparisons that find it; empty if none does.
        cause: Cause that most of them report; empty if none does.
        retraining: Whether the policy requests a retraining.
        why: Reason of the policy in a sentence.
        effect: Mean absolute change of a prediction by a change of ``size`` (or the largest), which bounds what slips
            through; None if unknown.
        loss: Change of the model's metric by it on labelled rows, below 0 if the model gets worse; None if unknown.
    """

    feature: str
    fault: str
    unit: str
    size: float | None
    interval: Sequence[float | None]
    largest: float
    words: str
    fault_from: float | None = None
    curve: tuple[PowerAtSize, ...] = ()
    after: int | None = None
    verdict: str = ""
    cause: str = ""
    retraining: bool = False
    why: str = ""
    effect: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class RehearsedFeature(JsonFields):
    """A feature without a planted fault.

    Attributes:
        false_alarms: Share of the unchanged windows in which it is called drifted, with its 95% interval.
        scores: Its distances in the unchanged windows, oldest first; None where there is none.
        threshold: Its threshold in most of them.
        state: ``compared``; ``blind`` if no fault of it is found, or it is not compared; ``weak`` if one that moves
            predictions much is not; ``loud`` if it is called drifted in too many unchanged windows; or ``drifting`` in
            most of them, so that faults cannot be told from what is there already.
        advice: Arguments that would make it neither blind, weak nor loud, to paste; empty if there are none.
        because: What they would change, in a sentence; or why there are none.
    """

    name: str
    false_alarms: Interval
    scores: Sequence[float | None] = ()
    threshold: float | None = None
    state: str = "compared"
    advice: str = ""
    because: str = ""


@dataclass(frozen=True)
class RehearsedWindow(JsonFields):
    """A window of unchanged rows, and what the monitor and its policy say of it.

    Attributes:
        start: Start of the window, ISO 8601 UTC; empty if its rows have no time.
        end: Its end.
        rows: Number of its rows.
        verdict: Verdict of its comparison.
        drifted: Features that have drifted in it.
        requested: Whether the policy requests a retraining.
        reason: Reason of the policy in a sentence.
    """

    start: str
    end: str
    rows: int
    verdict: str
    drifted: Sequence[str] = ()
    requested: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Rehearsal(JsonFields):
    """The content of ``rehearsal.json``.

    Attributes:
        version: Version of the model.
        rows: Rows of the windows: ``captured`` requests, or rows of the ``training``'s held-out splits.
        every_s: Seconds between two comparisons.
        problem: Kind of problem.
        metric: Metric of ``loss``; empty if there are no labelled rows.
        policy: The policy as JSON.
        skew: Options of the comparison.
        false_alarms: Share of the unchanged windows whose verdict is not ``stable``, with its 95% interval.
        requests: Number of retrainings that the policy would have requested over the unchanged windows.
        cost_core_s: CPU seconds of the run that trained the model, what a retraining costs; None if unknown.
        windows: Unchanged windows, oldest first.
        features: Features, those that need advice first.
        faults: Faults, by what slips through: those that nothing finds and whose effect is not known first, then the
            largest effect.
        notes: What was not rehearsed, in sentences.
    """

    model_name: str
    version: int
    rows: str
    every_s: float
    problem: str = ""
    metric: str = ""
    policy: Mapping[str, Any] = field(default_factory=dict)
    skew: Mapping[str, Any] = field(default_factory=dict)
    false_alarms: Interval = (0.0, 0.0, 1.0)
    requests: int = 0
    cost_core_s: float | None = None
    windows: tuple[RehearsedWindow, ...] = ()
    features: tuple[RehearsedFeature, ...] = ()
    faults: tuple[RehearsedFault, ...] = ()
    notes: Sequence[str] = ()
