"""Operator that trains on ranks of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from airflow_hops.operators.training import RanksTrainOperator, TrainOperator
from airflow_hops.runner.arguments import Count, Positive


class TorchTrainOperator(RanksTrainOperator, TrainOperator):
    """Runs a training function on ``np`` ranks of ``torch.distributed``, and publishes the model as an ONNX graph.

    The process group is initialized before the function is called, with NCCL if the ranks have GPUs, else with Gloo.
    The function wraps its module in ``DistributedDataParallel``, or averages gradients itself. The ranks' parameters
    are compared at the end. With the strategy ``fsdp``, the ranks share one model: the function calls ``fully_shard``.

    Args:
        train: ``module:function`` beside the DAG file, called on every rank; returns a ``torch.nn.Module``, wrapped or
            not. (templated)
        strategy: ``torch``, in which each rank holds the whole model, or ``fsdp``, in which it holds shards of it.
        stall_timeout_s: Seconds without a sign of life from a rank after which all ranks are ended.
        kwargs: Arguments of :class:`~airflow_hops.operators.training.RanksTrainOperator` and
            :class:`~airflow_hops.operators.training.TrainOperator`.
    """

    template_fields: Sequence[str] = (*TrainOperator.template_fields, "hosts", "conf")

    def __init__(
        self,
        *,
        np: Count | tuple[Count, Count] = 2,
        strategy: Literal["torch", "fsdp"] = "torch",
        stall_timeout_s: Positive = 300.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(np=np, stall_timeout_s=stall_timeout_s, **kwargs)
        self.strategy = strategy
        self.check_arguments(TorchTrainOperator)
