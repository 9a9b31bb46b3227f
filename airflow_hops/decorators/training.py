"""``@task.train`` and ``@task.horovod``: train with a function of the DAG file."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_hops.decorators.hops import HopsDecoratedOperator, StageDecoratedOperator, decorator
from airflow_hops.operators.training import HorovodTrainOperator, TrainingOperator, TrainOperator

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
    """Trains with a function of the DAG file in one process, like :class:`.TrainOperator`.

    Example::

        @task.train(runtime="churn")
        def train(context, examples, leaves: int):
            import lightgbm

            rows = context.table("train")
            return lightgbm.train({"objective": "binary", "num_leaves": leaves}, rows.dataset())
    """

    custom_operator_name = "@task.train"
    template_fields: Sequence[str] = ("op_args", "op_kwargs", *TrainOperator.template_fields)


class HorovodDecoratedOperator(TrainingDecoratedOperator, HorovodTrainOperator):
    """Trains with a function of the DAG file on several ranks, ``@task.horovod(np=2)``.

    It takes the arguments of :class:`~airflow_hops.operators.training.HorovodTrainOperator`. The function is called on
    every rank; rank 0's return value is used.
    """

    custom_operator_name = "@task.horovod"
    template_fields: Sequence[str] = ("op_args", "op_kwargs", *HorovodTrainOperator.template_fields)


train_task = decorator(TrainDecoratedOperator)
horovod_task = decorator(HorovodDecoratedOperator)
