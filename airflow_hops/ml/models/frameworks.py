"""Frameworks whose trained models are exported; distributions register them (``airflow_hops.frameworks``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import FRAMEWORKS, load_all
from airflow_hops.serving.models.model_signature import EstimatorInputs

if TYPE_CHECKING:
    from airflow_hops.ml.models.samples import Sample
    from airflow_hops.ml.training.tables import SplitTable


class NotExportable(Exception):
    """A model, or a part of it, cannot be written in a format.

    Args:
        message: The model or part, and the reason.
        advice: Alternative for the user.
    """

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


@dataclass(frozen=True)
class Written:
    """A model's files, as a framework wrote them.

    Attributes:
        inputs: Inputs of the stored model: columns by name, or one matrix.
        outputs: Names of the stored model's outputs by the model's; the only output of a model has the key ``""``.
            Empty if the format knows them itself.
    """

    inputs: EstimatorInputs
    outputs: Mapping[str, str] = field(default_factory=dict)


class Framework(ABC):
    """A framework: which models are its own, how they predict, and how they are written for the model server.

    A subclass is registered as an entry point of the group ``airflow_hops.frameworks``, under the framework's name.

    Attributes:
        package: Top-level package of the models' classes.
        distributions: Distributions that models are trained and converted with; a model records their versions.
    """

    package: ClassVar[str]
    distributions: ClassVar[tuple[str, ...]] = ()

    def owns(self, model: object) -> bool:
        """Returns whether an object is a trained model of this framework."""
        return self.package in {cls.__module__.partition(".")[0] for cls in type(model).__mro__}

    def rows(self, model: object, table: SplitTable) -> tuple[Any, Sequence[str]]:
        """Returns held-out rows as a model takes them: a data frame, or a matrix ``[rows, width]``; and their columns.

        By default they are the matrix of all features, in the table's order.

        Raises:
            BadInput: The model was trained on other columns, which requests will lack.
        """
        return table.matrix(), list(table.specs)

    @abstractmethod
    def predict(self, model: Any, sample: Sample, target: Target) -> Any:
        """Returns the model's own predictions for rows, against which the exported model is checked.

        Args:
            model: The model.
            sample: The rows; ``sample.rows`` are as the model takes them.
            target: Target of the model.

        Returns:
            In a regression numbers ``[rows]``, with two classes the second's probability ``[rows]``, with several
            classes probabilities ``[rows, classes]``; or a dict of these by label.

        Raises:
            BadInput: The model does not predict the target.
        """

    def classes(self, model: object, sample: Sample) -> Any:
        """Returns the number of the class that a model chooses for each row, ``[rows]``; None if it chooses none.

        A served class is the likeliest, so a model that chooses another is not exported.
        """
        return None

    @abstractmethod
    def formats(self, model: Any) -> Sequence[str]:
        """Returns the formats that a model can be written in, by their names in ``airflow_hops.model_formats``.

        The first one is used; others only if the user lets the export fall back. Such a format opens a
        :class:`~airflow_hops.serving.models.local.LocalServable`.
        """

    @abstractmethod
    def write(self, model: Any, folder: Path, format: str, sample: Sample, target: Target) -> Written:
        """Writes the format's files to an empty folder; the model's signature is added to them.

        Args:
            model: The model; for several labels a dict of models by label, unless one model predicts them all.
            folder: The folder.
            format: One of :meth:`formats`.
            sample: Rows as the model takes them.
            target: Target of the model.

        Raises:
            NotExportable: The format cannot hold the model; the next format is tried.
            BadInput: A package is missing.
        """

    def save(self, model: object, folder: Path) -> None:
        """Writes a trained model to a folder, for trainings that continue from it; raises BadInput if it cannot."""
        raise BadInput(f"no training can continue from models of {self.package}; leave continue_from out")

    def load(self, folder: Path, model: object = None) -> Any:
        """Returns the model of :meth:`save`, or gives its weights to ``model``; raises BadInput if they do not fit."""
        raise BadInput(f"no training can continue from models of {self.package}")

    def inexact_part(self, model: object, sample: Sample) -> str | None:
        """Returns the part of a model that the written model computes differently for these rows, if known."""
        return None


def frameworks() -> Mapping[str, Framework]:
    """Returns the known frameworks by name."""
    return load_all(FRAMEWORKS, Framework)  # type: ignore[type-abstract]


def framework_of(value: object) -> str | None:
    """Returns the framework of a model, or of a dict of models by label; None if unknown.

    Raises:
        BadInput: the dict's models are of different frameworks.
    """
    if isinstance(value, Mapping):
        of_labels = {str(label): framework_of(each) for label, each in value.items()}
        if None in of_labels.values() or not of_labels:
            return None
        if len(set(of_labels.values())) > 1:
            listed = ", ".join(f"{label!r} {framework}" for label, framework in of_labels.items())
            raise BadInput(f"the estimators are of several frameworks: {listed}; train those of all labels with one")
        return next(iter(of_labels.values()))
    return next((name for name, framework in frameworks().items() if framework.owns(value)), None)
