"""``@task.hops_schema``: infers a schema that a function of the DAG file amends before it is frozen."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import task_decorator_factory

from airflow_hops.decorators.hops import HopsDecoratedOperator
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.operators.schema import FUNCTION, SchemaOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator


class SchemaDecoratedOperator(HopsDecoratedOperator, SchemaOperator):
    """A :class:`~airflow_hops.operators.schema.SchemaOperator` whose inferred schema a function amends.

    Example::

        @task.hops_schema(statistics=statistics.output)
        def schema(schema):
            import tensorflow_data_validation as tfdv

            tfdv.get_feature(schema, "dest").presence.min_fraction = 1.0

    Args:
        python_callable: The function, shipped as that of ``@task.hops``. Its first parameter, of any name, is the
            inferred ``Schema``, which it changes in place or returns. It runs once, when the schema is frozen.
        **kwargs: As :class:`~airflow_hops.operators.schema.SchemaOperator`, without ``schema``.

    Raises:
        ValueError: ``schema`` is set too, the function cannot be shipped, or it has no parameter for the schema.
    """

    custom_operator_name = "@task.hops_schema"
    entry: ClassVar[str] = SchemaOperator.entry

    def __init__(self, *, python_callable: Callable[..., Any], schema: None = None, **kwargs: Any) -> None:
        if schema is not None:
            raise ValueError(
                f"@task.hops_schema: the schema is what {python_callable.__name__}() makes of the inferred"
            )
        _hide_schema(python_callable)
        super().__init__(python_callable=python_callable, output_kind=SchemaOperator.output_kind, **kwargs)

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the options of the inference, and the function."""
        return {**SchemaOperator.step_params(self, context), "curate": HopsDecoratedOperator.step_params(self, context)}

    def step_inputs(self) -> Mapping[str, Any]:
        """Returns the statistics, and the artifacts among the function's arguments."""
        return {**HopsDecoratedOperator.step_inputs(self), **SchemaOperator.step_inputs(self)}

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Returns the parts of the cache key, including the function's source."""
        source: str = self.get_python_source()  # type: ignore[no-untyped-call]
        return {**super().step_cache_key_parts(hook), FUNCTION: hashlib.sha256(source.encode()).hexdigest()}


schema_task: Callable[..., TaskDecorator] = partial(
    task_decorator_factory, decorated_operator_class=SchemaDecoratedOperator, multiple_outputs=False
)


def _hide_schema(function: Callable[..., Any]) -> None:
    """Removes the first parameter from the signature that Airflow binds."""
    count = function.__code__.co_argcount
    first = function.__code__.co_varnames[0] if count else None
    if first is None or first == "context":
        actual = "none" if first is None else "'context'"
        raise ValueError(
            f"@task.hops_schema: the first parameter of {function.__name__}() gets the inferred schema, found {actual}"
        )
    signature = inspect.signature(function)
    if first in signature.parameters:
        parameters = [parameter for parameter in signature.parameters.values() if parameter.name != first]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
