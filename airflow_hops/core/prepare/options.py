"""Options of the preparation of examples from raw tables, for the operator and the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_hops.core.artifacts.target import BINARY, MAX_CLASSES, MULTICLASS, Problem, Target
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.json_fields import StepOptions

TRAIN, EVAL, NEWEST, ROWS = "train", "eval", "newest", "rows"
"""Names of the splits of examples that this package makes; users' examples may have others."""


@dataclass(frozen=True)
class PrepareOptions(StepOptions):
    """Options of the prepare stage, as the arguments of ``PrepareOperator``; durations in seconds, no label as "".

    Raises:
        BadInput: an option is not allowed.
    """

    prepare: str
    label: str
    key: str | None = None
    time: str | None = None
    eval_percent: int = 20
    newest_s: float | None = None
    table: str | None = None
    reject: Mapping[str, str] = field(default_factory=dict)
    max_rejected: float = 0.1
    problem: Problem | None = None
    classes: Sequence[str | int] | None = None
    weight: str | None = None
    more_labels: Mapping[str, Problem | Sequence[str | int] | None] = field(default_factory=dict)
    engine: str = "spark"

    def __post_init__(self) -> None:
        if not 0 <= self.eval_percent <= 99:
            raise InvalidArgument("eval_percent", self.eval_percent, ", expected 0 to 99")
        if not self.label:
            unset = PrepareOptions(self.prepare, "a label")
            for option in ("eval_percent", "newest_s", "problem", "classes", "weight", "more_labels"):
                if (value := getattr(self, option)) != getattr(unset, option):
                    name = option.removesuffix("_s")
                    raise BadInput(f"label is None, but {name} is {value!r}; rows to be scored have no {name}")
        if self.newest_s is not None and self.time is None:
            raise BadInput("newest needs a time; name the column of the time, or leave newest out")
        if self.newest_s is not None and self.newest_s <= 0:
            raise BadInput(f"newest is {self.newest_s} seconds, expected a length of time above 0")
        if self.weight is not None and self.weight in (self.label, self.key, self.time):
            raise InvalidArgument("weight", self.weight, ", which is also the column of the label, the key or the time")
        if self.classes is not None:
            names = [str(name) for name in self.classes]
            if "" in names:
                raise BadInput("classes has ''; expected values of the label")
            if twice := [name for name in names if names.count(name) > 1]:
                raise BadInput(f"classes names {twice[0]!r} twice; each is one value of the label")
            if len(names) > MAX_CLASSES:
                raise BadInput(
                    f"classes has {len(names)} names, more than {MAX_CLASSES}; so many values are not classes"
                )
            _ = self.named
        for name in self.more_labels:
            if name in (self.label, self.key, self.time, self.weight):
                raise BadInput(
                    f"more_labels names {name!r}, the column of the label, the key, the time or the weight; expected "
                    "another one"
                )
        _ = self.of_labels

    @property
    def of_labels(self) -> tuple[PrepareOptions, ...]:
        """Returns the options of each label, starting with the first; each has only that label.

        Raises:
            BadInput: an option of a further label is not allowed.
        """
        if not self.more_labels:
            return (self,) if self.label else ()
        bare, result = replace(self, more_labels={}), []
        for name, report in self.more_labels.items():
            what = (
                {"problem": report}
                if report is None or isinstance(report, str)
                else {"problem": None, "classes": report}
            )
            try:
                result.append(replace(bare, **{"label": name, "classes": None, "weight": None, **what}))  # type: ignore[arg-type]
            except BadInput as error:
                raise BadInput(f"more_labels[{name!r}]: {error}") from None
        return (bare, *result)

    @property
    def named(self) -> Target | None:
        """Returns the target if the classes are set; None if they are determined from the data.

        Raises:
            BadInput: problem and classes contradict each other.
        """
        if self.classes is None:
            return None
        names = tuple(map(str, self.classes))
        problem = self.problem or (BINARY if len(names) == 2 else MULTICLASS)
        return Target(self.label, problem, names, self.weight)

    @property
    def as_text(self) -> bool:
        """Returns whether a boolean label is a class named false or true, instead of 0 or 1."""
        return self.classes is not None or self.problem == MULTICLASS
