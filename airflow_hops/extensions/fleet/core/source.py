"""Raw files whose rows a fleet reads itself, so that a run reads only the files that have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_hops.core.artifacts.properties import ExamplesProperties
from airflow_hops.core.artifacts.target import REGRESSION, Problem, Target
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.prepare.options import EVAL, TRAIN, PrepareOptions
from airflow_hops.core.sources.sources import Source
from airflow_hops.core.stability import experimental


@experimental
@dataclass(frozen=True)
class SegmentSource(Source):
    """Raw files of a fleet's rows, which become examples as they are; fields besides these are those of ``Source``.

    Attributes:
        label: Name of the label's column.
        key: Column by whose hash rows are in the split ``train`` or ``eval``; None for the hash of all features.
        weight: Column of the rows' weights.
        eval_percent: Percentage of the rows in the split ``eval``.
        problem: ``regression``; None with ``classes``.
        classes: Values of the label that are classes; rows with others are rejected.
        max_rejected: Share of the rows that may be rejected.

    Raises:
        BadInput: an option is not allowed.

    Example:
        >>> from airflow_hops.extensions.fleet import SegmentSource
        >>> SegmentSource("s3://raw/sales", label="amount", key="receipt", problem="regression").eval_percent
        20
    """

    label: str = ""
    key: str | None = None
    weight: str | None = None
    eval_percent: int = 20
    problem: Problem | None = None
    classes: Sequence[str | int] | None = None
    max_rejected: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.time_column is not None:
            raise InvalidArgument("time_column", self.time_column, "; expected none: a fleet reads all rows")
        share = self.max_rejected
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise InvalidArgument("max_rejected", share, ", expected a share from 0 to 1")
        if not isinstance(self.eval_percent, int) or isinstance(self.eval_percent, bool):
            raise InvalidArgument("eval_percent", self.eval_percent, ", expected 0 to 99")
        if isinstance(self.classes, str) or any(isinstance(each, bool) for each in self.classes or ()):
            raise InvalidArgument("classes", self.classes, ", expected a list of the label's values")
        if (self.problem == REGRESSION) == (self.classes is not None):
            raise BadInput(
                f"source {self.uri!r}: problem is {self.problem!r} and classes {self.classes!r}; expected "
                f"problem={REGRESSION!r}, or the label's classes: a file's rows must not depend on other files"
            )
        _ = self.options

    @property
    def options(self) -> PrepareOptions:
        """Options by which rows are divided into splits and rejected."""
        names = ("label", "key", "weight", "eval_percent", "problem", "classes", "max_rejected")
        return PrepareOptions(prepare="", **{name: getattr(self, name) for name in names})

    @property
    def target(self) -> Target:
        """The target of the models."""
        return self.options.named or Target(self.label, REGRESSION, None, self.weight)

    @property
    def facts(self) -> ExamplesProperties:
        """Properties that examples of these rows would have."""
        target = self.target
        return ExamplesProperties(
            label=self.label,
            key=self.key,
            splits=(TRAIN, EVAL) if self.eval_percent else (TRAIN,),
            problem=target.problem,
            classes=target.classes,
            weight=self.weight,
        )
