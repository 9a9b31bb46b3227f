"""``@task.hops_statistics``: computes statistics whose options a function of the DAG file returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import task_decorator_factory

from airflow_hops.decorators.hops import HopsDecoratedOperator
from airflow_hops.operators.statistics import StatisticsOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator


class StatisticsDecoratedOperator(HopsDecoratedOperator, StatisticsOperator):
    """A :class:`~airflow_hops.operators.statistics.StatisticsOperator` whose options a function returns.

    Example::

        @task.hops_statistics(examples=examples.output)
        def statistics():
            import tensorflow_data_validation as tfdv

            def by_season(batch):
                ...

            return tfdv.StatsOptions(experimental_slice_functions=[by_season])

    Args:
        python_callable: The function, shipped as that of ``@task.hops``; it returns ``tfdv.StatsOptions``.
        **kwargs: As :class:`~airflow_hops.operators.statistics.StatisticsOperator`, without ``options``.

    Raises:
        ValueError: ``options`` is set too, or the function cannot be shipped.
    """

    custom_operator_name = "@task.hops_statistics"
    entry: ClassVar[str] = StatisticsOperator.entry
    cacheable: ClassVar[bool] = True

    def __init__(self, *, python_callable: Callable[..., Any], options: None = None, **kwargs: Any) -> None:
        if options is not None:
            raise ValueError(f"@task.hops_statistics: options are what {python_callable.__name__}() returns")
        super().__init__(python_callable=python_callable, output_kind=StatisticsOperator.output_kind, **kwargs)

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the source, and the function that returns the options."""
        return {
            **StatisticsOperator.step_params(self, context),
            "options_function": HopsDecoratedOperator.step_params(self, context),
        }

    def step_inputs(self) -> Mapping[str, Any]:
        """Returns the examples, and the artifacts among the function's arguments (a schema)."""
        return {**HopsDecoratedOperator.step_inputs(self), **StatisticsOperator.step_inputs(self)}


statistics_task: Callable[..., TaskDecorator] = partial(
    task_decorator_factory, decorated_operator_class=StatisticsDecoratedOperator, multiple_outputs=False
)
