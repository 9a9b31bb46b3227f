"""Maps labels and predictions to the order of the candidate's classes, by class names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.artifacts.target import BINARY, MULTICLASS, REGRESSION, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.metrics.metrics import Array
from airflow_hops.ml.metrics.scoring import ScoredModel, ScoredRows

CANDIDATE, CHAMPION = "candidate", "champion"
_AWAY = "serve the new model under another model_name"


@dataclass(frozen=True)
class ClassNames:
    """Class names of the examples and of the models.

    Attributes:
        examples: Classes of the examples, in the order of their numbers; None in a regression.
        models: Classes of each model, in the order of its outputs.
    """

    examples: tuple[str, ...] | None
    models: Mapping[str, tuple[str, ...]]

    @property
    def count(self) -> int | None:
        """Number of the examples' classes; None in a regression."""
        return None if self.examples is None else len(self.examples)

    @property
    def of_candidate(self) -> tuple[str, ...] | None:
        """Classes of the candidate; None in a regression."""
        return self.models.get(CANDIDATE)

    @property
    def new(self) -> tuple[str, ...]:
        """Classes that the candidate knows, and the champion does not."""
        known = self.models.get(CHAMPION, self.of_candidate) or ()
        return tuple(name for name in self.of_candidate or () if name not in known)

    def numbers(self, labels: Array) -> Array:
        """Converts numbers of the examples' classes to the candidate's; -1 for unknown classes."""
        if self.examples is None or self.of_candidate is None:
            return labels
        numbers = np.append(_numbers(self.examples, self.of_candidate), -1)
        return numbers[np.where((labels >= 0) & (labels < len(self.examples)), labels, -1)]

    def align(self, scored: ScoredRows, where: str) -> ScoredRows:
        """Converts labels and predictions to the candidate's class numbers; ``where`` names the split in messages.

        Raises:
            BadInput: the candidate does not know a row's class.
        """
        labels, predictions, compared = scored.labels, dict(scored.predictions), scored.compared
        mine = self.of_candidate
        if self.examples is not None and mine is not None:
            if self.examples != mine:
                labels = self.numbers(labels)
                if (unknown := labels < 0).any():
                    name = self.examples[int(scored.labels[unknown][0])]
                    raise BadInput(
                        f"{where}: {int(unknown.sum())} of {len(labels)} rows are of class {name!r}, which the model "
                        f"does not know; its classes are {', '.join(mine)}. Train it on examples that have the class"
                    )
            theirs = self.models.get(CHAMPION, mine)
            if theirs != mine and CHAMPION in predictions:
                numbers = _numbers(mine, theirs)
                predictions[CHAMPION] = _columns(predictions[CHAMPION], numbers)
                compared = numbers[labels] >= 0
        return replace(scored, labels=labels, predictions=predictions, compared=compared)


def class_names(models: Mapping[str, ScoredModel], properties: Mapping[str, ModelProperties], of: Target) -> ClassNames:
    """Returns the class names, after checking that the models can be judged together.

    A model whose artifact does not name its classes has those of the examples, by number.

    Args:
        models: The candidate, and the champion if one exists.
        properties: Properties of the models' artifacts.
        of: Target of the examples.

    Raises:
        BadInput: a model predicts another problem, or lacks a class that the champion knows.
    """
    candidate, champion = models[CANDIDATE], models.get(CHAMPION)
    problem = candidate.problem
    # A softmax over two classes counts as multiclass.
    if problem != of.problem and not (problem == MULTICLASS and of.problem == BINARY):
        raise BadInput(
            f"{candidate.path}: the model's output {candidate.output!r} has the problem {problem!r}, but the label "
            f"{of.label!r} of the examples has {of.problem!r}; evaluate it on examples of the same problem"
        )
    if champion is not None and champion.problem != candidate.problem:
        raise BadInput(
            f"the model's problem is {problem!r}, the champion's {champion.problem!r}; they cannot be compared: {_AWAY}"
        )
    if problem == REGRESSION:
        return ClassNames(None, {})
    examples = of.classes or tuple(map(str, range(candidate.classes or 2)))
    names = {name: _names_of(name, model, properties[name], examples) for name, model in models.items()}
    lost = [name for name in names.get(CHAMPION, ()) if name not in names[CANDIDATE]]
    if lost:
        raise BadInput(
            f"the champion knows {', '.join(map(repr, lost))}, and the model does not; its classes are "
            f"{', '.join(names[CANDIDATE])}. Train it on examples that have them, or {_AWAY}"
        )
    return ClassNames(examples, names)


def _names_of(name: str, model: ScoredModel, properties: ModelProperties, examples: tuple[str, ...]) -> tuple[str, ...]:
    names = properties.classes or examples
    outputs = model.classes or 2
    if len(names) != outputs:
        whose = "its artifact names" if properties.classes else "its artifact names none, and the examples have"
        raise BadInput(
            f"the {name} distinguishes {outputs} classes ({model.path}), but {whose} {len(names)}: {', '.join(names)}; "
            f"{'state its classes where it is trained or imported' if name == CANDIDATE else _AWAY}"
        )
    return names


def _numbers(names: tuple[str, ...], among: tuple[str, ...]) -> Array:
    """Returns the index of each name in another list; -1 if it is missing."""
    places = {name: number for number, name in enumerate(among)}
    return np.array([places.get(name, -1) for name in names], np.int64)


def _columns(probabilities: Array, numbers: Array) -> Array:
    """Reorders probabilities by class; 0 for a class that the model does not know."""
    if probabilities.ndim == 1:
        return probabilities if numbers[1] == 1 else 1 - probabilities
    result = probabilities[:, np.maximum(numbers, 0)]
    result[:, numbers < 0] = 0.0
    return result
