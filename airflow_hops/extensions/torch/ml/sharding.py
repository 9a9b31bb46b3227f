"""Ranks that share one model: each holds a shard of every parameter (``fully_shard``)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_hops.core.errors import BadInput
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.extensions.torch.ml.checkpoints import (
    check_finite,
    check_module,
    check_others,
    load_state,
    save_state,
)
from airflow_hops.ml.training.digests import SAME_ON_ALL_RANKS, Digests, digest
from airflow_hops.ml.training.gang import Channel, Placement
from airflow_hops.ml.training.gang.rendezvous import SharedValues
from airflow_hops.ml.training.stage.rank_group import RankGroup

if TYPE_CHECKING:
    import torch


class TorchGroup(RankGroup):
    """Member of a process group, over NCCL if ranks have GPUs, else over Gloo.

    Args:
        placement: Placement of this rank.
        channel: Channel to the watching process.
        options: Options of the training.
        threads: Threads of PyTorch's operations.

    Raises:
        BadInput: this environment has no PyTorch, or only some ranks have GPUs.
    """

    _is_checked = False
    advice = "train within torch.nn.parallel.DistributedDataParallel, and change parameters on all ranks alike"

    def __init__(self, placement: Placement, channel: Channel, options: TrainingOptions, threads: int) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            raise BadInput(
                f"PyTorch is not installed in this runtime environment ({error}); create one with it (airflow hops "
                "runtime create --name NAME --with torch), and set runtime='NAME' in the task"
            ) from None
        self._values = SharedValues("hops-torch", placement, channel)
        if interface := os.environ.get("HOROVOD_GLOO_IFACE"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        torch.set_num_threads(threads)
        has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
        backend = "cpu:gloo,cuda:nccl" if has_nccl else "gloo"  # Gloo is for tensors on the CPU
        backends = self._values.exchange("backend", backend)
        if len(set(backends)) > 1:
            listed = ", ".join(f"rank {rank}: {each}" for rank, each in enumerate(backends))
            raise BadInput(
                f"PyTorch finds a GPU on some ranks, and none on others ({listed}); give all hosts the same build of "
                "PyTorch and a GPU for each rank, or to none: env={'CUDA_VISIBLE_DEVICES': ''}"
            )
        is_first, timeout = placement.rank == 0, timedelta(seconds=self._values.patience_s)
        if is_first:
            address = self._values.own_address
            # With port 0, since another process could take a chosen port first.
            store = dist.TCPStore(address, 0, placement.size, True, timeout, wait_for_workers=False)
            self._values.put("store", f"{address}:{store.port}")
        else:
            address, _, port = self._values.wait("store").partition(":")
            store = dist.TCPStore(address, int(port), placement.size, False, timeout)
        dist.init_process_group(backend, store=store, rank=placement.rank, world_size=placement.size, timeout=timeout)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Returns the numbers of each rank, by rank; every rank must call it with equally many."""
        import torch
        import torch.distributed as dist

        every = torch.zeros(dist.get_world_size(), len(values), dtype=torch.float64)
        every[dist.get_rank()] = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(every)
        by_rank: list[list[float]] = every.tolist()
        return by_rank

    def check_weights(self, model: object) -> str:
        """Returns the checksum of the state that predictions depend on, which must be equal on all ranks.

        Before, it averages the running statistics of batch normalizations, which only the last batches make different.

        Raises:
            BadInput: it is not a module, the ranks differ, or a parameter contains NaN or infinity.
        """
        import torch
        import torch.distributed as dist

        for module in check_module(model).modules():
            if isinstance(module, torch.nn.modules.batchnorm._NormBase) and module.running_mean is not None:
                for statistic in (module.running_mean, module.running_var):
                    total = statistic.double()
                    dist.all_reduce(total)
                    statistic.copy_(total / dist.get_world_size())
        return self._values.check_equal(module_digests(_inner(model)), f"{self.advice}; {SAME_ON_ALL_RANKS}")

    def save(self, model: object, optimizer: object, folder: Path, others: Mapping[str, object]) -> None:
        """Writes the state of a module; see :func:`~airflow_hops.extensions.torch.ml.checkpoints.save_state`."""
        if not self._is_checked:
            check_others(check_module(model), optimizer, others)
        self._is_checked = True
        save_state(model, optimizer, others, folder)

    def load(self, model: object, optimizer: object, folder: Path | None, others: Mapping[str, object]) -> None:
        """Reads the state of a module; see :func:`~airflow_hops.extensions.torch.ml.checkpoints.load_state`."""
        check_others(check_module(model), optimizer, others)
        if folder is not None:
            load_state(model, optimizer, others, folder)

    def unwrap(self, model: object) -> object:
        """Returns the module inside ``DistributedDataParallel``, if it is wrapped."""
        return _inner(model)

    def finish(self) -> None:
        """Leaves the group after all ranks have finished."""
        import torch.distributed as dist

        dist.barrier()
        dist.destroy_process_group()


def _inner(model: torch.nn.Module) -> object:
    return model.module if type(model).__name__ == "DistributedDataParallel" else model


def module_digests(module: torch.nn.Module) -> Digests:
    """Returns the digests of a module's parameters, buffers, and other tensors, arrays and floats in its attributes.

    Raises:
        BadInput: a parameter contains NaN or infinity.
    """
    import torch

    def arrays(value: Any) -> list[np.ndarray | float]:
        if isinstance(value, torch.Tensor):
            value = value.full_tensor() if hasattr(value, "full_tensor") else value
            flat = value.detach().cpu().contiguous().reshape(-1)
            return [np.array([str(value.dtype), str(tuple(value.shape))]), flat.view(torch.uint8).numpy()]
        if isinstance(value, np.ndarray | float):
            return [value]
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        return [array for each in values for array in arrays(each)]

    check_finite(module)
    named = [*module.named_parameters(), *module.named_buffers()]
    own = {"_parameters", "_buffers", "_modules", "_losses"}  # Keras's _losses are those of the rank's last batch
    for path, each in module.named_modules():
        named += [(f"{path}.{name}".lstrip("."), value) for name, value in vars(each).items() if name not in own]
    return [(name, digest(*values)) for name, value in named if (values := arrays(value))]


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
