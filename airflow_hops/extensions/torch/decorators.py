"""``@task.torch``: trains with a function of the DAG file on ranks of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_hops.decorators.hops import decorator
from airflow_hops.decorators.training import TrainingDecoratedOperator
from airflow_hops.extensions.torch.operators import TorchTrainOperator


class TorchDecoratedOperator(TrainingDecoratedOperator, TorchTrainOperator):
    """Trains with a function of the DAG file on several ranks of ``torch.distributed``.

    It takes the arguments of :class:`~airflow_hops.extensions.torch.operators.TorchTrainOperator`. The function is
    called on every rank, within the process group; rank 0's model is used.

    Example::

        @task.torch(np=2, runtime="torch")
        def train(context, examples, lr: float):
            ...
            return model  # torch.nn.parallel.DistributedDataParallel
    """

    custom_operator_name = "@task.torch"
    template_fields: Sequence[str] = ("op_args", "op_kwargs", *TorchTrainOperator.template_fields)


torch_task = decorator(TorchDecoratedOperator)
