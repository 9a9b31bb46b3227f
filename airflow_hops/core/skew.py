"""Comparison of served rows, or of two spans: options, and the artifact's properties with verdict and causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from airflow_hops.core.artifacts.properties import Properties, Window
from airflow_hops.core.distances import DRIFT, PIPELINE_FAULT, Cause, SkewTest, SkewVerdict
from airflow_hops.core.json_fields import JsonFields, omit_if_none

REPORT_FILE = "report.json"
HISTOGRAMS_FILE = "histograms.jsonl"  # a line for each feature of the report, in its order


@dataclass(frozen=True)
class SkewOptions(SkewTest):
    """Options of the skew stage, as the arguments of ``SkewOperator``; durations in seconds.

    A verdict requires 1,000 rows unless ``min_rows`` is set.
    """

    model_name: str | None = None
    split: str = "train"
    time_feature: str | None = None
    attribute: bool = True
    predictions: bool = True
    own_windows: bool = False
    identifiers: Sequence[str] = ()
    float_rounding: int | None = None
    silent_after_s: float | None = None
    down_after_s: float | None = None

    MIN_ROWS: ClassVar[int] = 1000
    """A verdict consumes the rows; with fewer, each would detect less."""


@dataclass(frozen=True)
class SkewReference(JsonFields):
    """The reference of a comparison.

    Attributes:
        statistics: URI of the statistics.
        schema: URI of the schema, or None.
        model: For captured rows: the model.
        version: For captured rows: the version that was trained on the statistics.
    """

    statistics: str = ""
    fingerprint: str = ""
    schema: str | None = None
    model: str | None = omit_if_none()
    version: int | None = omit_if_none()


@dataclass(frozen=True)
class SkewProperties(Properties):
    """Properties of a ``skew`` artifact.

    Attributes:
        verdict: ``insufficient`` if there are too few rows; ``pipeline_fault`` if a drifted feature indicates a broken
            pipeline; ``drift``; or ``stable``. Empty if the artifact has none.
        drifted: Names of the drifted features, largest drift first.
        lost: Names of features that no longer have values.
        causes: Probable causes of drift by feature.
        effects: Mean changes of a prediction by drifted feature; in a regression, in the label's unit.
        problem: Kind of problem, if there are effects; None for two classes in artifacts of older versions.
        prediction: Distance of the predictions from those for the training data, and its threshold, if known.
        skewed: Features that differ row by row.
        scores: Score and threshold by feature; each may be None.
        window_end: End of the compared span, ISO 8601 UTC.
        window_start: For captured rows: start of their period, by their own time.
        unwell: For captured rows: problems of the monitor itself, such as the server's clock, in words.
        captured_from: For captured rows: time of the first request.
        captured_until: For captured rows: time of the last request.
        captured_files: For captured rows: names of the first and the last of their files.
        versions: For captured rows: number of rows by version.
        current: For two spans: URI of the later statistics.
        split: For two spans: the split.
        windows: For two spans: both windows by role.
    """

    verdict: SkewVerdict | Literal[""] = ""
    drifted: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    causes: Mapping[str, Cause] = field(default_factory=dict)
    effects: Mapping[str, float] = field(default_factory=dict)
    problem: str | None = omit_if_none()
    prediction: tuple[float, float] | None = omit_if_none()
    skewed: tuple[str, ...] = ()
    reference: SkewReference = field(default_factory=SkewReference)
    min_rows: int | None = None
    scores: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    window_end: str | None = None
    window_start: str | None = omit_if_none()
    unwell: tuple[str, ...] = ()
    captured_from: str | None = omit_if_none()
    captured_until: str | None = omit_if_none()
    captured_files: tuple[str, str] | None = omit_if_none()
    versions: Mapping[str, int] | None = omit_if_none()
    current: str | None = omit_if_none()
    split: str | None = omit_if_none()
    windows: Mapping[str, Window | None] | None = omit_if_none()

    @property
    def why_not_learnt(self) -> str | None:
        """Returns why it is not a reason to retrain, in one word; None for drift."""
        return None if self.verdict == DRIFT else PIPELINE_FAULT if self.verdict == PIPELINE_FAULT else "verdict"


@dataclass(frozen=True)
class NameRange(JsonFields):
    """Names of captured files after ``after``, up to ``until``; None before the first file."""

    after: str | None
    until: str | None


@dataclass(frozen=True)
class ComparedFiles(JsonFields):
    """Captured files that a task has compared: its ``captured.json`` in the store.

    Attributes:
        until: Name up to which they were compared.
        runs: Files of each run.
        models: Models that the task compares, whose files a garbage collection keeps.
    """

    until: str | None
    runs: Mapping[str, NameRange]
    models: tuple[str, ...]
