"""Operators that take a trained model, or the name of a deployed one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_hops.core.errors import BadInput
from airflow_hops.operators.base import HopsOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class TrainedOrDeployedOperator(HopsOperator):
    """Takes either ``model``, the output of a training, or ``model_name``, which is deployed; subclasses set both."""

    model: Any
    model_name: str | None

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the keyword arguments of the entry function."""
        self._check_model()
        return {**super().step_params(context), "model_name": self.model_name or None}

    def _check_model(self) -> None:
        """Raises BadInput if both or neither of ``model`` and ``model_name`` are set, also once they are rendered."""
        if (self.model is None) == (not self.model_name):
            raise BadInput(
                f"model is {'given' if self.model is not None else None}, model_name is {self.model_name!r}; expected "
                "one of them"
            )

    def _cache_enabled(self) -> bool:
        # The serving version is unknown until the step reads it.
        return not self.model_name and super()._cache_enabled()
