"""Ranks that share one model: each holds a shard of every parameter (``fully_shard``)."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from airflow_hops.core.errors import BadInput
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.extensions.torch.ml.checkpoints import check_module
from airflow_hops.extensions.torch.ml.ranks import TorchGroup
from airflow_hops.ml.training.gang import Channel, Placement

if TYPE_CHECKING:
    import torch

_M_MMAP_THRESHOLD = -3  # of malloc.h
_MAPPED_BYTES = 256 << 10


class ShardedGroup(TorchGroup):
    """Member of a process group whose ranks hold shards of one model."""

    advice = "buffers are not sharded: change them on all ranks alike"

    def __init__(self, placement: Placement, channel: Channel, options: TrainingOptions, threads: int) -> None:
        super().__init__(placement, channel, options, threads)
        # Each layer's whole parameters are freed after use. On the CPU, glibc would keep much of this memory, three
        # times the model's in a measurement, unless blocks of this size are mapped and so returned at once.
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)

    def check_weights(self, model: torch.nn.Module) -> str:
        """Returns the checksum of the whole model; each parameter is brought together by itself.

        Raises:
            BadInput: it is not a module, it is not sharded, its buffers differ between ranks, or a parameter contains
                NaN or infinity.
        """
        from torch.distributed.tensor import DTensor

        check_module(model)
        whole = [name for name, each in model.named_parameters() if not isinstance(each, DTensor)]
        if whole:
            raise BadInput(
                f"strategy is 'fsdp', but each rank holds all of the parameter {whole[0]!r}; call "
                "torch.distributed.fsdp.fully_shard(model) before the optimizer is made, or set strategy='torch'"
            )
        return super().check_weights(model)

    def unwrap(self, model: object) -> object:
        """Returns the whole model, as a plain module, on rank 0; on others, one whose parameters are empty."""
        import torch.distributed as dist

        return gathered(model, dist.get_rank() == 0, {})


def gathered(
    module: torch.nn.Module, is_kept: bool, made: dict[int, torch.nn.Module | torch.nn.Parameter]
) -> torch.nn.Module:
    """Returns a sharded module without shards, on the CPU; every rank must call it.

    One parameter is brought together after the other, so no rank holds more than one model and a parameter.

    Args:
        module: The module; it is left unchanged.
        is_kept: Whether this rank keeps the parameters.
        made: Parameters and modules by the id of their originals, which may occur several times.
    """
    import torch
    from torch.distributed.fsdp import FSDPModule

    def whole(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        if id(parameter) not in made:
            values = parameter.detach().full_tensor() if hasattr(parameter, "full_tensor") else parameter.detach()
            values = values.cpu() if is_kept else torch.empty(0, dtype=values.dtype)
            made[id(parameter)] = torch.nn.Parameter(values, parameter.requires_grad)
        return made[id(parameter)]

    def without(hooks: Any) -> Any:
        """The hooks of fully_shard bring parameters together at each call."""
        return type(hooks)((key, hook) for key, hook in hooks.items() if "fsdp" not in getattr(hook, "__module__", ""))

    if id(module) not in made:
        kind = next(each for each in type(module).__mro__ if not issubclass(each, FSDPModule))
        plain: Any = object.__new__(kind)
        made[id(module)] = plain
        hooks = {
            name: without(value)
            for name, value in vars(module).items()
            if name in ("_forward_hooks", "_forward_pre_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks")
        }
        vars(plain).update({**vars(module), **hooks})
        plain._parameters = {n: None if each is None else whole(each) for n, each in module._parameters.items()}
        plain._buffers = {n: None if each is None else each.cpu() for n, each in module._buffers.items()}
        plain._modules = {
            n: None if each is None else gathered(each, is_kept, made) for n, each in module._modules.items()
        }
    return made[id(module)]
