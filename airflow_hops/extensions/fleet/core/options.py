"""Options and results of a fleet's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_hops.core.artifacts.properties import Properties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import JsonFields, StepOptions

FINDINGS_FILE = "findings.json"
"""File of a ``fleet_skew``: numbers of segments and tests, the allowed rate of false discoveries, and the findings."""

LINEAR, TREES = "linear", "trees"


@dataclass(frozen=True)
class FleetOptions(StepOptions):
    """Options of the training of a fleet, as the arguments of ``TrainFleetOperator``.

    Raises:
        BadInput: an option is not allowed.
    """

    segment: str
    source: Mapping[str, Any] | None = None
    model: str = LINEAR
    columns: Sequence[str] | None = None
    groups: Sequence[str] = ()
    only: Sequence[str] | None = None
    max_failed: float = 0.0
    max_segments: int = 20_000
    look_alikes: Literal["refuse", "keep"] = "refuse"
    min_rows: int = 30
    standard_errors: float = 3.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in (LINEAR, TREES) and ":" not in self.model:
            raise BadInput(f"model is {self.model!r}; expected {LINEAR!r}, {TREES!r} or a function, 'module:function'")
        if self.only is not None and (isinstance(self.only, str) or not self.only):
            raise BadInput(f"only is {self.only!r}; expected a list of keys of segments, at least one")
        if self.only is not None:
            object.__setattr__(self, "only", tuple(map(str, self.only)))  # integers are keys, too
        if self.segment in (self.columns or ()):
            raise BadInput(f"columns has {self.segment!r}, which is the segment's own; leave it out")


@dataclass(frozen=True)
class FleetOutcomes(JsonFields):
    """Outcome of a training of a fleet, in the property ``fleet`` of the model.

    Attributes:
        segment: The segment's column.
        segments: Number of segments.
        states: Number of segments that are answered by a model of their own, one that continued, or the pooled one.
        trained: Segments that were trained in this run.
        reused: Segments whose rows and options were those of an earlier run.
        failed: Segments whose training failed.
        appeared: Segments that the fleet before did not have.
        vanished: Segments of the fleet before without rows in this run.
        encoding: ``made`` in this run, or ``kept`` from the fleet before.
        previous: URI of the fleet before.
        look_alikes: Groups of keys that look alike, up to 20.
        deciles: By tenth of the segments by rows, from the smallest: segments, rows, and the mean losses of the fleet
            and of the pooled model alone on rows of the evaluation.
    """

    segment: str
    segments: int = 0
    states: Mapping[str, int] = field(default_factory=dict)
    trained: int = 0
    reused: int = 0
    failed: int = 0
    appeared: int = 0
    vanished: int = 0
    encoding: str = "made"
    previous: str | None = None
    look_alikes: Sequence[Sequence[str]] = ()
    deciles: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class FleetSkewProperties(Properties):
    """Properties of a ``fleet_skew``.

    Attributes:
        segments: Keys of the drifted segments, those of drifted groups included.
        groups: Findings about whole groups, such as ``region=North: price``.
        tests: Number of tests.
        silent: Keys of segments without captured rows, of which enough to test were expected.
    """

    model_name: str = ""
    version: int | None = None
    verdict: str = ""
    segments: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    tests: int = 0
    silent: tuple[str, ...] = ()
