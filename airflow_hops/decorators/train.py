"""``@task.train``, ``@task.torch``, ``@task.horovod``, ``@task.search``: they train with a function of the DAG file."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import task_decorator_factory

from airflow_hops.core.contract.search import Space
from airflow_hops.decorators.hops import HopsDecoratedOperator
from airflow_hops.operators.search import SearchOperator
from airflow_hops.operators.train import HorovodTrainOperator, TorchTrainOperator, TrainingOperator, TrainOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator


class TrainingDecoratedOperator(HopsDecoratedOperator, TrainingOperator):
    """Base of the operators that train with a function of the DAG file.

    Args:
        python_callable: The function, shipped as that of ``@task.hops``. If its first parameter is named ``context``,
            it gets a :class:`airflow_hops.ml.training.context.TrainContext`. It returns a model, which is published, or
            a JSON value.
        **kwargs: As the operator without a decorator, less ``train`` and ``script``.

    Raises:
        ValueError: ``train`` or ``script`` is given too, or the function cannot be shipped.
    """

    entry: ClassVar[str] = TrainingOperator.entry
    cacheable: ClassVar[bool] = True

    def __init__(
        self, *, python_callable: Callable[..., Any], train: None = None, script: None = None, **kwargs: Any
    ) -> None:
        for name, given in {"train": train, "script": script}.items():
            if given is not None:
                raise ValueError(
                    f"{self.custom_operator_name}: {name} is {given!r}; what is trained is {python_callable.__name__}()"
                )
        super().__init__(python_callable=python_callable, output_kind=TrainingOperator.output_kind, **kwargs)

    def step_params(self, context: Context) -> dict[str, Any]:
        """As the operator without a decorator."""
        return super(HopsDecoratedOperator, self).step_params(context)

    def training(self, context: Context) -> dict[str, Any]:
        """How to train; the function's arguments are hyperparameters, too."""
        given = super(HopsDecoratedOperator, self).training(context)
        shipped = given["shipped"]
        named = {**dict(zip(self._positional_names(), shipped["args"], strict=False)), **shipped["kwargs"]}
        inputs = self.step_inputs()
        return {**given, "params": {**given["params"], **{n: v for n, v in named.items() if n not in inputs}}}

    def program(self, context: Context) -> dict[str, Any]:
        """The function, with its arguments."""
        return {"shipped": HopsDecoratedOperator.step_params(self, context)}

    def step_inputs(self) -> Mapping[str, Any]:
        """The examples, and artifacts among the function's arguments."""
        given = super(HopsDecoratedOperator, self).step_inputs()
        return {**HopsDecoratedOperator.step_inputs(self), **{n: v for n, v in given.items() if v is not None}}

    def _positional_names(self) -> list[str]:
        return list(inspect.signature(self.python_callable).parameters)


def _fields_with(operator: type[TrainingOperator]) -> Sequence[str]:
    return tuple(dict.fromkeys([*HopsDecoratedOperator.template_fields, *operator.template_fields]))


class TrainDecoratedOperator(TrainingDecoratedOperator, TrainOperator):
    """A :class:`~airflow_hops.operators.train.TrainOperator` of a function of the DAG file."""

    custom_operator_name = "@task.train"
    template_fields = _fields_with(TrainOperator)


class TorchDecoratedOperator(TrainingDecoratedOperator, TorchTrainOperator):
    """A :class:`~airflow_hops.operators.train.TorchTrainOperator` of a function of the DAG file.

    The function is called on every rank, which has joined the others; rank 0's model counts.
    """

    custom_operator_name = "@task.torch"
    template_fields = _fields_with(TorchTrainOperator)


class HorovodDecoratedOperator(TrainingDecoratedOperator, HorovodTrainOperator):
    """A :class:`~airflow_hops.operators.train.HorovodTrainOperator` of a function of the DAG file.

    The function is called on every rank; rank 0's return value counts.
    """

    custom_operator_name = "@task.horovod"
    template_fields = _fields_with(HorovodTrainOperator)


class SearchDecoratedOperator(TrainingDecoratedOperator, SearchOperator):
    """A :class:`~airflow_hops.operators.search.SearchOperator` of a function of the DAG file.

    The function's arguments that the DAG gives no value to are the trial's parameters.
    """

    custom_operator_name = "@task.search"
    entry: ClassVar[str] = SearchOperator.entry
    template_fields = _fields_with(SearchOperator)

    def __init__(self, *, python_callable: Callable[..., Any], space: Space | str, **kwargs: Any) -> None:
        python_callable = _copy(python_callable)  # another task of the function may have another space
        signature = inspect.signature(python_callable)
        of_trials = space.keys() if isinstance(space, Mapping) else signature.parameters.keys() - kwargs["op_kwargs"]
        if not isinstance(space, Mapping):  # a function makes it: what the DAG gives is given by name
            of_trials -= {"context"}
        kept = [each for name, each in signature.parameters.items() if name not in of_trials]
        python_callable.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        super().__init__(python_callable=python_callable, space=space, **kwargs)

    def program(self, context: Context) -> dict[str, Any]:
        """The function, with those of its arguments that the DAG gives, by name."""
        shipped = super().program(context)["shipped"]
        named = {**dict(zip(self._positional_names(), shipped["args"], strict=False)), **shipped["kwargs"]}
        return {"shipped": {**shipped, "args": [], "kwargs": named}}


def _copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of its own, with the same code."""
    if not isinstance(function, types.FunctionType):
        return function
    copied = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(copied, function)
    return copied


def _task(
    operator: type[TrainingDecoratedOperator],
    python_callable: Callable[..., Any] | None,
    multiple_outputs: bool | None,
    kwargs: Mapping[str, Any],
) -> TaskDecorator:
    return task_decorator_factory(
        python_callable=python_callable, multiple_outputs=multiple_outputs, decorated_operator_class=operator, **kwargs
    )


def train_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Wraps a function into a task that trains with it in one process, with any framework.

    Example::

        @task.train(runtime="churn")
        def train(context, examples, leaves: int):
            import lightgbm

            rows = context.table("train")
            return lightgbm.train({"objective": "binary", "num_leaves": leaves}, rows.dataset())

    Args:
        python_callable: The function to decorate.
        multiple_outputs: Whether a returned dict becomes one XCom value for each key.
        **kwargs: Arguments of :class:`~airflow_hops.operators.train.TrainOperator`.
    """
    return _task(TrainDecoratedOperator, python_callable, multiple_outputs, kwargs)


def torch_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Wraps a function into a task that trains with it on several ranks of ``torch.distributed``.

    Example::

        @task.torch(np=2, runtime="torch")
        def train(context, examples, lr: float):
            ...
            return model  # torch.nn.parallel.DistributedDataParallel

    Args:
        python_callable: The function to decorate.
        multiple_outputs: Whether a returned dict becomes one XCom value for each key.
        **kwargs: Arguments of :class:`~airflow_hops.operators.train.TorchTrainOperator`.
    """
    return _task(TorchDecoratedOperator, python_callable, multiple_outputs, kwargs)


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
    return _task(HorovodDecoratedOperator, python_callable, multiple_outputs, kwargs)


def search_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Wraps a function into a task that searches for the best of its parameters.

    Example::

        @task.search(space={"leaves": IntUniform(7, 63)}, metric="eval_auc", direction="maximize", trials=20)
        def train(context, examples, leaves: int):
            ...
            context.report(1, eval_auc=auc)
            return model

    Args:
        python_callable: The function to decorate.
        multiple_outputs: Whether a returned dict becomes one XCom value for each key.
        **kwargs: Arguments of :class:`~airflow_hops.operators.search.SearchOperator`.
    """
    return _task(SearchDecoratedOperator, python_callable, multiple_outputs, kwargs)
