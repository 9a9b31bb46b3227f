"""Target of a model: the column of the label, and the kind of problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from airflow_hops.core.errors import BadInput
from airflow_hops.core.names import check_known

Problem = Literal["binary", "multiclass", "regression"]
"""Two classes, with the probability of the second as prediction; several classes; or a number."""

PROBLEMS: tuple[Problem, ...] = get_args(Problem)
BINARY, MULTICLASS, REGRESSION = PROBLEMS

OUTPUTS: dict[Problem, str] = {BINARY: "probability", MULTICLASS: "probabilities", REGRESSION: "prediction"}
"""Name of a served model's output with the prediction: float32 of shape ``[batch]``, or ``[batch, classes]`` with a
probability for each of several classes.
"""

CLASS = "class"
"""Output with the most likely of several classes."""

MAX_CLASSES = 1000


@dataclass(frozen=True)
class Target:
    """The target of a model.

    In examples a class is its number, an int64, and the value of a regression is a float64.

    Attributes:
        label: Name of the label's column.
        classes: Names of the classes in the order of their numbers; None in a regression, and if the label is 0 or 1.
        weight: Name of the column of the rows' weights (float64, greater than 0), or None.
        more: Further labels that the same model predicts; each is a target without a weight and further labels. Only
            this target decides whether a model is blessed, promoted or retrained.

    Raises:
        BadInput: problem and classes contradict each other.
    """

    label: str
    problem: Problem = BINARY
    classes: tuple[str, ...] | None = None
    weight: str | None = None
    more: tuple[Target, ...] = ()

    def __post_init__(self) -> None:
        check_known("problem", self.problem, PROBLEMS)
        count = None if self.classes is None else len(self.classes)
        if self.problem == REGRESSION and count is not None:
            raise BadInput(
                f"classes are {', '.join(self.classes or ())}, but problem is {REGRESSION!r}, which has none"
            )
        if self.problem == BINARY and count not in (None, 2):
            raise BadInput(f"there are {count} classes, but problem is {BINARY!r}; expected 2")
        if self.problem == MULTICLASS and (count is None or count < 2):
            raise BadInput(
                f"problem is {MULTICLASS!r}; expected the names of at least 2 classes, found {count or 'none'}"
            )

    @property
    def probabilities(self) -> set[str]:
        """Names of the outputs of a served model that are probabilities."""
        return {
            self.output_prefix(each.label) + OUTPUTS[each.problem] for each in self.all if each.problem != REGRESSION
        }

    @classmethod
    def from_properties(
        cls,
        label: str,
        problem: str | None,
        classes: Sequence[str] | None,
        weight: str | None = None,
        more_labels: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Target:
        """Returns the target in an artifact's properties; ``problem`` is None in artifacts of older versions.

        Raises:
            BadInput: problem and classes contradict each other.
        """
        names = None if classes is None else tuple(classes)
        more = tuple(
            cls.from_properties(name, facts.get("problem"), facts.get("classes"))
            for name, facts in (more_labels or {}).items()
        )
        return cls(label, problem_of(problem, names), names, weight, more)

    @property
    def more_labels(self) -> dict[str, dict[str, Any]] | None:
        """Returns the further labels in the form of artifacts' properties; None if there are none."""
        classes = {each.label: {} if each.classes is None else {"classes": list(each.classes)} for each in self.more}
        return {each.label: {"problem": each.problem, **classes[each.label]} for each in self.more} or None

    @property
    def all(self) -> tuple[Target, ...]:
        """Returns this target and the further ones."""
        return (self, *self.more)

    def output_prefix(self, label: str) -> str:
        """Returns the prefix of a label's served outputs; empty for the target's own label."""
        return "" if label == self.label else f"{label}_"

    @property
    def dtype(self) -> str:
        """Returns the dtype of the label's column in examples."""
        return "float64" if self.problem == REGRESSION else "int64"

    @property
    def dtypes(self) -> dict[str, str]:
        """Returns the dtypes of the columns that training needs besides the features, by name: labels, weight."""
        return {**{each.label: each.dtype for each in self.all}, **({self.weight: "float64"} if self.weight else {})}

    def class_name(self, number: int) -> str:
        """Returns the name of a class, or its number if it has none."""
        return str(number) if self.classes is None else repr(self.classes[number])


def problem_of(problem: str | None, classes: tuple[str, ...] | None) -> Problem:
    """Returns the problem in an artifact's properties; for artifacts of older versions, derives it from the classes."""
    if problem is None:
        return MULTICLASS if classes is not None and len(classes) > 2 else BINARY
    check_known("problem", problem, PROBLEMS)
    return problem  # type: ignore[return-value]


def check_heads(found: object, target: Target, whose: str) -> Mapping[str, Any] | None:
    """Returns a model's outputs by name; None for a model with a single output and a single label.

    Raises:
        BadInput: there are several labels or outputs without a mapping, or a label has no output.
    """
    labels = [each.label for each in target.all]
    if isinstance(found, Mapping):
        missing = [name for name in labels if name not in found]
        if missing:
            values = ", ".join(map(repr, found)) or "nothing"
            raise BadInput(
                f"{whose} has no output for the label {missing[0]!r}; it gives {values}: expected an output named as "
                f"each of the labels {', '.join(map(repr, labels))}"
            )
        return found
    if target.more or isinstance(found, list | tuple):
        gives = f"{len(found)} outputs without names" if isinstance(found, list | tuple) else "one output"
        raise BadInput(
            f"{whose} gives {gives}; expected a dict with an output for each of the labels "
            f"{', '.join(map(repr, labels))}"
        )
    return None
