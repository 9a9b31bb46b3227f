"""Performance of served versions, measured with labels that arrive later: options, report and properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from airflow_hops.core.artifacts.properties import Properties
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.json_fields import JsonFields, StepOptions, omit_if_none
from airflow_hops.core.metrics import Interval
from airflow_hops.core.times import window_time

REPORT_FILE = "performance.json"

REQUEST_KEYS = ("request_id", "row")
"""Keys of feedback that was sent to the server."""


@dataclass(frozen=True)
class PerformanceOptions(StepOptions):
    """Options of the performance stage, as the arguments of ``PerformanceOperator``; durations in seconds.

    Attributes:
        source: Fields of the labels' :class:`~airflow_hops.core.sources.sources.RowSource`; None for feedback, or for
            labels that are an artifact.
        label: The operator's ``of_label``.
        horizon_s: Seconds after a prediction in which its label becomes known; None if the keys name one prediction.

    Raises:
        BadInput: an option is out of range.
    """

    model_name: str
    source: Mapping[str, Any] | None = None
    table: str | None = None
    label: str | None = None
    label_column: str | None = None
    keys: Sequence[str] = REQUEST_KEYS
    label_time: str | None = None
    horizon_s: float | None = None
    time_feature: str | None = None
    as_of: str | None = None
    window_s: float | None = None
    period_s: float = 86_400.0
    label_delay_s: float = 0.0
    ages_s: Sequence[float] = (86_400.0, 7 * 86_400.0, 30 * 86_400.0)
    min_rows: int = 100
    estimates: bool = True

    def __post_init__(self) -> None:
        for name in ("window_s", "period_s", "horizon_s"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise BadInput(f"{name.removesuffix('_s')} is {seconds:g} seconds; expected more than 0")
        if self.label_delay_s < 0:
            raise BadInput(f"label_delay is {self.label_delay_s:g} seconds; expected at least 0")
        if self.min_rows < 2:
            raise InvalidArgument("min_rows", self.min_rows, "; expected at least 2")
        if not self.keys or isinstance(self.keys, str):
            raise InvalidArgument("keys", self.keys, "; expected a list of columns")
        if "row" in self.keys and "request_id" not in self.keys:
            raise BadInput(f"keys is {list(self.keys)}; the row number 'row' needs 'request_id', the id of its request")
        if list(self.ages_s) != sorted({age for age in self.ages_s if age > 0}):
            raise BadInput(f"ages is {[f'{age:g} s' for age in self.ages_s]}; expected ascending times above 0")
        _ = self.as_of_time

    @property
    def as_of_time(self) -> datetime | None:
        """Returns the end of the window; UTC if it has no zone."""
        return window_time("as_of", self.as_of)


@dataclass(frozen=True)
class VersionPerformance(JsonFields):
    """The quality of a version's predictions in a period or window.

    Attributes:
        start: Start of the time, ISO 8601 UTC.
        end: End of the time, exclusive.
        rows: Number of predictions.
        labelled: Predictions with a label.
        measured: Labelled predictions that are old enough to be measured.
        figures: The problem's metrics on the measured rows; empty if there are too few.
        estimates: The same metrics on all predictions, estimated without labels; empty if not possible.
        baseline: For a whole window: the metrics on the held-out split of the version's training.
        drop: For a whole window: by how much each metric is worse than the baseline, with an interval for the
            difference; above 0 is worse for every metric.
    """

    version: int
    start: str
    end: str
    rows: int = 0
    labelled: int = 0
    measured: int = 0
    figures: Mapping[str, Interval] = field(default_factory=dict)
    estimates: Mapping[str, Interval] = field(default_factory=dict)
    baseline: Mapping[str, Interval] | None = omit_if_none()
    drop: Mapping[str, Interval] | None = omit_if_none()


@dataclass(frozen=True)
class LabelAge(JsonFields):
    """Completeness of the labels of predictions of an age.

    Attributes:
        from_s: Minimum age in seconds.
        to_s: Maximum age, exclusive; None for no limit.
        rows: Number of predictions.
        labelled: Predictions with a label.
    """

    from_s: float
    to_s: float | None
    rows: int
    labelled: int


@dataclass(frozen=True)
class LabelCounts(JsonFields):
    """Counts of labels by usability.

    Attributes:
        given: Labels that were read and are known by now.
        joined: Labels of captured predictions.
        unknown: Labels without a captured prediction.
        repeated: Duplicates of other labels.
        corrected: Predictions with several labels, of which the latest is used; with a horizon, labels that a later one
            within it replaces.
        contradictory: Predictions, or with a horizon keys, with several labels of the same time; none is used.
        future: Labels that became known after the end of the window or after now; ignored.
        invalid: Labels that are not a class of the model, or not a number; ignored.
        untimed: Labels without a time although others have one; ignored.
        keyless: Labels without a value in one of the keys; ignored.
        missing: Labels without a value, which are not known yet.
        early: Labels that became known before one of their predictions; with a horizon before each of their key, and
            ignored.
        late: Labels that became known after the horizon of each prediction of their key; ignored.
    """

    given: int = 0
    joined: int = 0
    unknown: int = 0
    repeated: int = 0
    corrected: int = 0
    contradictory: int = 0
    future: int = 0
    invalid: int = 0
    untimed: int = 0
    keyless: int = 0
    missing: int = 0
    early: int = 0
    late: int = 0


@dataclass(frozen=True)
class PerformanceProperties(Properties):
    """Properties of a ``performance`` artifact.

    Attributes:
        problem: Kind of problem.
        metric: The problem's first metric.
        label: Name of the label.
        as_of: End of the window, ISO 8601 UTC.
        versions: Each version over the whole window.
        labels: Counts of labels by usability.
        notes: Problems and missing data, in sentences.
        unwell: The notes that make the metrics useless for the present: no labels, or no new ones.
        captured_files: Names of the first and the last captured file with rows of the window.
    """

    model_name: str = ""
    problem: str = ""
    metric: str = ""
    label: str = ""
    as_of: str = ""
    versions: tuple[VersionPerformance, ...] = ()
    labels: LabelCounts = field(default_factory=LabelCounts)
    notes: tuple[str, ...] = ()
    unwell: tuple[str, ...] = ()
    captured_files: tuple[str, str] | None = omit_if_none()

    def of_version(self, version: int) -> VersionPerformance | None:
        """Returns a version's performance; None if it answered no requests in the window."""
        return next((each for each in self.versions if each.version == version), None)


@dataclass(frozen=True)
class PerformanceReport(PerformanceProperties):
    """The content of ``performance.json``.

    Attributes:
        periods: Each version in each period in which it answered, oldest first.
        ages: Completeness of the labels by the predictions' age.
        delay_s: Quantiles (0.5 and 0.95) of the seconds from prediction to label; None if unknown.
    """

    periods: tuple[VersionPerformance, ...] = ()
    ages: tuple[LabelAge, ...] = ()
    delay_s: tuple[float, float] | None = None

    @property
    def properties(self) -> PerformanceProperties:
        """Returns the properties of the artifact."""
        return PerformanceProperties(**{each.name: getattr(self, each.name) for each in fields(PerformanceProperties)})
