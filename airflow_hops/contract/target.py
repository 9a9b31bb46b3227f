"""What a model is to predict: the column of the label, and the kind of problem that it makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from airflow_hops.contract.artifacts import BadInput

Problem = Literal["binary", "multiclass", "regression"]
"""A label of two classes, whose predictions are the probability of the second; one of several classes; a number."""

PROBLEMS: tuple[Problem, ...] = get_args(Problem)
BINARY, MULTICLASS, REGRESSION = PROBLEMS

OUTPUTS: dict[Problem, str] = {BINARY: "probability", MULTICLASS: "probabilities", REGRESSION: "prediction"}
"""The output of a served model that is its prediction: float32 of shape ``[batch]``; of several classes, a probability
for each, ``[batch, classes]``."""

MAX_CLASSES = 1000
"""Classes that a label may have."""


@dataclass(frozen=True)
class Target:
    """What a model is to predict.

    Examples hold a class as its number, an int64, and the value of a regression as a float64.

    Attributes:
        label: Name of the label's column.
        problem: The kind of problem.
        classes: Names of the classes in the order of their numbers; None in a regression, and where the label is 0 or 1
            by itself.
        weight: Name of the column of the rows' weights (float64, greater than 0), or None.

    Raises:
        BadInput: problem and classes contradict each other.
    """

    label: str
    problem: Problem = BINARY
    classes: tuple[str, ...] | None = None
    weight: str | None = None

    def __post_init__(self) -> None:
        if self.problem not in PROBLEMS:
            raise BadInput(f"problem is {self.problem!r}, expected one of {', '.join(PROBLEMS)}")
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
    def dtype(self) -> str:
        """Dtype of the label's column in examples."""
        return "float64" if self.problem == REGRESSION else "int64"

    @property
    def dtypes(self) -> dict[str, str]:
        """The columns of examples that training needs beside the features, by name: label, weight."""
        return {self.label: self.dtype, **({self.weight: "float64"} if self.weight else {})}

    def class_name(self, number: int) -> str:
        """What a class is called: its name, or its number where it has none."""
        return str(number) if self.classes is None else repr(self.classes[number])


def problem_of(problem: str | None, classes: tuple[str, ...] | None) -> Problem:
    """The problem that an artifact states; of one that was written before problems were: by its classes."""
    if problem is None:
        return MULTICLASS if classes is not None and len(classes) > 2 else BINARY
    if problem not in PROBLEMS:
        raise BadInput(f"problem is {problem!r}, expected one of {', '.join(PROBLEMS)}")
    return problem  # type: ignore[return-value]
