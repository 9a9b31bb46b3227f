"""``@task.train``, ``@task.torch``, ``@task.horovod`` and ``@task.search``: train with a function of the DAG file."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_hops.decorators.hops import HopsDecoratedOperator, StageDecoratedOperator, decorator
from airflow_hops.extensions.experiments.core.search import Space
from airflow_hops.extensions.experiments.operators import SearchOperator
from airflow_hops.operators.train import HorovodTrainOperator, TorchTrainOperator, TrainingOperator, TrainOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class TrainingDecoratedOperator(StageDecoratedOperator, TrainingOperator):
    """Base of the operators that train with a function of the DAG file.

    If the function's first parameter is named ``context``, it gets a
    :class:`airflow_hops.ml.training.context.TrainContext`. It returns a model, which is published, or a JSON value.
    ``train`` and ``script`` cannot be set.
    """

    entry: ClassVar[str] = TrainingOperator.entry
    replaces = ("train", "script")

    def training(self, context: Context, **options: Any) -> dict[str, Any]:
        """Returns the training options, with the function's arguments as hyperparameters."""
        shipped = self.shipped(context)
        options = super(HopsDecoratedOperator, self).training(context, shipped=shipped, **options)
        named, inputs = self._named(shipped), self.step_inputs()
        return {**options, "params": {**options["params"], **{n: v for n, v in named.items() if n not in inputs}}}

    def _named(self, shipped: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the function's arguments by name."""
        names = inspect.signature(self.python_callable).parameters
        return {**dict(zip(names, shipped["args"], strict=False)), **shipped["kwargs"]}


class TrainDecoratedOperator(TrainingDecoratedOperator, TrainOperator):
    """Trains with a function of the DAG file in one process, like :class:`~airflow_hops.operators.train.TrainOperator`.

    Example::

        @task.train(runtime="churn")
        def train(context, examples, leaves: int):
            import lightgbm

            rows = context.table("train")
            return lightgbm.train({"objective": "binary", "num_leaves": leaves}, rows.dataset())
    """

    custom_operator_name = "@task.train"


class TorchDecoratedOperator(TrainingDecoratedOperator, TorchTrainOperator):
    """Trains with a function of the DAG file on several ranks of ``torch.distributed``.

    It takes the arguments of :class:`~airflow_hops.operators.train.TorchTrainOperator`. The function is called on every
    rank, within the process group; rank 0's model is used.

    Example::

        @task.torch(np=2, runtime="torch")
        def train(context, examples, lr: float):
            ...
            return model  # torch.nn.parallel.DistributedDataParallel
    """

    custom_operator_name = "@task.torch"


class HorovodDecoratedOperator(TrainingDecoratedOperator, HorovodTrainOperator):
    """Trains with a function of the DAG file on several ranks, ``@task.horovod(np=2)``.

    It takes the arguments of :class:`~airflow_hops.operators.train.HorovodTrainOperator`. The function is called on
    every rank; rank 0's return value is used.
    """

    custom_operator_name = "@task.horovod"


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


train_task = decorator(TrainDecoratedOperator)
torch_task = decorator(TorchDecoratedOperator)
horovod_task = decorator(HorovodDecoratedOperator)
search_task = decorator(SearchDecoratedOperator)
