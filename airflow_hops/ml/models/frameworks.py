"""Frameworks whose trained models are exported; extensions add others (``airflow_hops.frameworks``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_hops.core.contract.target import Target
from airflow_hops.core.extensions import FRAMEWORKS, load_all

if TYPE_CHECKING:
    from airflow_hops.extensions.frameworks.ml.onnx_converters import Graph
    from airflow_hops.ml.models.trained_models import Sample


class Framework(ABC):
    """A framework: how its models predict, and how they become ONNX graphs.

    A subclass is registered as an entry point of the group ``airflow_hops.frameworks``, under the framework's name.

    Attributes:
        package: Top-level package of the models' classes.
        distributions: Distributions that models are trained and converted with; a model records their versions.
        takes_frame: Whether models only take data frames; others get a matrix unless they select columns by name.
    """

    package: ClassVar[str]
    distributions: ClassVar[tuple[str, ...]] = ()
    takes_frame: ClassVar[bool] = False

    def owns(self, model: Any) -> bool:
        """Returns whether an object is a trained model of this framework."""
        return self.package in {cls.__module__.partition(".")[0] for cls in type(model).__mro__}

    @abstractmethod
    def predict(self, model: Any, sample: Sample, target: Target) -> Any:
        """Returns the model's own predictions for rows, against which the exported model is checked.

        Args:
            model: The model.
            sample: The rows; ``sample.rows`` are as the model takes them.
            target: What it predicts.

        Returns:
            In a regression numbers ``[rows]``, with two classes the second's probability ``[rows]``, with several
            classes probabilities ``[rows, classes]``; or a dict of these by label.

        Raises:
            BadInput: The model does not predict the target.
        """

    @abstractmethod
    def convert(self, model: Any, sample: Sample, target: Target) -> Graph:
        """Returns the model as an ONNX graph.

        Raises:
            NotConvertible: There is no converter for the model.
            BadInput: A package is missing.
        """


def frameworks() -> Mapping[str, Framework]:
    """Returns the known frameworks by name."""
    return load_all(FRAMEWORKS, Framework)  # type: ignore[type-abstract]
