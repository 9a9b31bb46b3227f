"""``@task.search``: searches for the best parameters of a function of the DAG file."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_hops.decorators.hops import decorator
from airflow_hops.decorators.training import TrainingDecoratedOperator
from airflow_hops.extensions.experiments.core.search import Space
from airflow_hops.extensions.experiments.operators import SearchOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class SearchDecoratedOperator(TrainingDecoratedOperator, SearchOperator):
    """Searches for the best parameters of a function of the DAG file.

    It takes the arguments of :class:`~airflow_hops.extensions.experiments.SearchOperator`. Arguments that the DAG does
    not set are the trial's parameters.

    Example::

        @task.search(space={"leaves": IntUniform(7, 63)}, metric="eval_auc", direction="maximize", trials=20)
        def train(context, examples, leaves: int):
            ...
            context.report(1, eval_auc=auc)
            return model
    """

    custom_operator_name = "@task.search"
    entry: ClassVar[str] = SearchOperator.entry
    template_fields: Sequence[str] = ("op_args", "op_kwargs", *SearchOperator.template_fields)

    def __init__(self, *, python_callable: Callable[..., Any], space: Space | str, **kwargs: Any) -> None:
        python_callable = _copy(python_callable)  # another task of the function may have another space
        signature = inspect.signature(python_callable)
        of_trials = space.keys() if isinstance(space, Mapping) else signature.parameters.keys() - kwargs["op_kwargs"]
        if not isinstance(space, Mapping):  # a function defines the space: the DAG passes its values by name
            of_trials -= {"context"}
        parameters = [each for name, each in signature.parameters.items() if name not in of_trials]
        python_callable.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        super().__init__(python_callable=python_callable, space=space, **kwargs)

    def shipped(self, context: Context) -> dict[str, Any]:
        """Returns the function with the arguments that the DAG sets, by name."""
        shipped = super().shipped(context)
        return {**shipped, "args": [], "kwargs": self._named(shipped)}


def _copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copies a function."""
    if not isinstance(function, types.FunctionType):
        return function
    copied = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(copied, function)
    return copied


search_task = decorator(SearchDecoratedOperator)
