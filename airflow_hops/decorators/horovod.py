"""``@task.horovod``: a training whose function stands in the DAG file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import task_decorator_factory

from airflow_hops.decorators.hops import HopsDecoratedOperator
from airflow_hops.operators.train import HorovodTrainOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator


class HorovodDecoratedOperator(HopsDecoratedOperator, HorovodTrainOperator):
    """A :class:`~airflow_hops.operators.train.HorovodTrainOperator` of a function of the DAG file.

    Args:
        python_callable: The function, shipped as that of ``@task.hops``, and called on every rank. If its first
            parameter is named ``context``, it gets a :class:`airflow_hops.hops.context.TrainContext`. It returns a
            model, which is published, or a JSON value; rank 0's counts.
        **kwargs: As :class:`~airflow_hops.operators.train.HorovodTrainOperator`, less ``train`` and ``script``.

    Raises:
        ValueError: ``train`` or ``script`` is given too, or the function cannot be shipped.
    """

    custom_operator_name = "@task.horovod"
    entry: ClassVar[str] = HorovodTrainOperator.entry
    cacheable: ClassVar[bool] = True
    template_fields: Sequence[str] = tuple(
        dict.fromkeys([*HopsDecoratedOperator.template_fields, *HorovodTrainOperator.template_fields])
    )

    def __init__(
        self, *, python_callable: Callable[..., Any], train: None = None, script: None = None, **kwargs: Any
    ) -> None:
        for name, given in {"train": train, "script": script}.items():
            if given is not None:
                raise ValueError(f"@task.horovod: {name} is {given!r}; what is trained is {python_callable.__name__}()")
        super().__init__(python_callable=python_callable, output_kind=HorovodTrainOperator.output_kind, **kwargs)

    def step_params(self, context: Context) -> dict[str, Any]:
        """How to train; the function's arguments are hyperparameters, too."""
        given = HorovodTrainOperator.step_params(self, context)
        shipped = given["shipped"]
        named = {**dict(zip(self._positional_names(), shipped["args"], strict=False)), **shipped["kwargs"]}
        inputs = self.step_inputs()
        return {**given, "params": {**given["params"], **{n: v for n, v in named.items() if n not in inputs}}}

    def program(self, context: Context) -> dict[str, Any]:
        """The function, with its arguments."""
        return {"shipped": HopsDecoratedOperator.step_params(self, context)}

    def step_inputs(self) -> Mapping[str, Any]:
        """The examples, and artifacts among the function's arguments."""
        given = HorovodTrainOperator.step_inputs(self)
        return {**HopsDecoratedOperator.step_inputs(self), **{n: v for n, v in given.items() if v is not None}}

    def _positional_names(self) -> list[str]:
        return list(inspect.signature(self.python_callable).parameters)


def horovod_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Wraps a function into a task that trains with it on several ranks.

    Example::

        @task.horovod(np=2)
        def train(context, examples, lr: float):
            ...
            return model

    Args:
        python_callable: The function to decorate.
        multiple_outputs: Whether a returned dict becomes one XCom value for each key.
        **kwargs: Arguments of :class:`~airflow_hops.operators.train.HorovodTrainOperator`.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=HorovodDecoratedOperator,
        **kwargs,
    )
