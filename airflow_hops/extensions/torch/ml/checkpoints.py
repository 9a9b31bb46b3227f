"""Checkpoints of modules and optimizers in PyTorch's distributed format: each rank writes what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.training.generator_states import restore_generators, save_generators

_CHUNK_BYTES = 16 << 20


def save_state(module: Any, optimizer: Any, folder: Path) -> None:
    """Writes the state of a module and its optimizer; every rank must call it.

    Each rank writes its shards to its folder, and sends the file to rank 0, whose folder then holds all.

    Raises:
        BadInput: it is not a module, or a parameter contains NaN or infinity.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter, save

    check_finite(check_module(module), "no checkpoint was written. Lower")
    rank, size = dist.get_rank(), dist.get_world_size()
    generators = torch.frombuffer(bytearray(_random_state()), dtype=torch.uint8)
    state = _state(module, optimizer) | {f"random-{rank}-of-{size}": generators}
    # Of buffers, such as those of batch normalization, DistributedDataParallel goes on with those of rank 0.
    save(state, storage_writer=FileSystemWriter(folder), planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True))
    for source in range(1, size):
        _bring(folder, source)


def load_state(module: Any, optimizer: Any, folder: Path) -> None:
    """Reads the state that any number of ranks has written; every rank must call it.

    Raises:
        BadInput: the folder holds no such state, or that of another module.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint import FileSystemReader, load
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import set_state_dict

    if not (folder / ".metadata").exists():
        raise BadInput(
            f"{folder}: holds files of context.checkpoint_files; read them with context.resumed_files, or delete the "
            "checkpoint to start again"
        )
    reader, entry = FileSystemReader(folder), f"random-{dist.get_rank()}-of-{dist.get_world_size()}"
    state = _state(check_module(module), optimizer)
    if (stored := reader.read_metadata().state_dict_metadata.get(entry)) is not None:
        state[entry] = torch.empty(stored.size, dtype=torch.uint8)
    try:
        load(state, storage_reader=reader)
    except CheckpointException as error:
        causes = {str(cause) for cause, _ in error.failures.values()}
        raise BadInput(
            f"{folder}: the checkpoint is of another model ({'; '.join(sorted(causes))}); delete it to start again, or "
            "restore the model that it was made with"
        ) from None
    set_state_dict(
        module,
        optimizer if optimizer is not None else [],
        model_state_dict=state["model"],
        optim_state_dict=state.get("optimizer", {}),
    )
    if entry in state:
        _restore_random_state(state[entry].numpy().tobytes())


def check_module(model: Any) -> Any:
    """Returns the model; raises BadInput if it is not a ``torch.nn.Module``."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise BadInput(f"the model is a {type(model).__name__}, expected a torch.nn.Module")
    return model


def check_finite(module: Any, advice: str = "lower") -> None:
    """Raises BadInput if a parameter, or this rank's shard of one, contains NaN or infinity.

    Args:
        module: The module.
        advice: Begins the advice in the message; ``the learning rate`` follows.
    """
    import torch

    for name, parameter in module.named_parameters():
        own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if not torch.isfinite(own).all():
            raise BadInput(
                f"the model's parameter {name!r} holds values that are not numbers; {advice} the learning rate, clip "
                "gradients, or look for such values in the examples"
            )


def _random_state() -> bytes:
    """Returns the states of this rank's random generators: Python's, NumPy's, PyTorch's, and its GPU's."""
    import torch

    on_gpu = {"gpu": torch.cuda.get_rng_state().numpy()} if torch.cuda.is_available() else {}
    return save_generators({"torch": torch.get_rng_state().numpy(), **on_gpu})


def _restore_random_state(state: bytes) -> None:
    import torch

    arrays = {name: torch.from_numpy(values) for name, values in restore_generators(state).items()}
    torch.set_rng_state(arrays["torch"])
    if "gpu" in arrays and torch.cuda.is_available():
        torch.cuda.set_rng_state(arrays["gpu"])


def _state(module: Any, optimizer: Any) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, states = get_state_dict(module, optimizer if optimizer is not None else [])
    return {"model": model, "optimizer": states} if optimizer is not None else {"model": model}


def _bring(folder: Path, source: int) -> None:
    """Sends the files of a rank to rank 0, which may be on another host, in pieces that fit in memory."""
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    names = [sorted(path.name for path in folder.iterdir())] if rank == source else [[]]
    dist.broadcast_object_list(names, source)
    for name in names[0]:
        path = folder / name
        left = torch.tensor([path.stat().st_size if rank == source else 0])
        dist.broadcast(left, source)
        if rank not in (0, source):
            continue
        with path.open("rb" if rank == source else "wb") as file:
            for start in range(0, int(left), _CHUNK_BYTES):
                size = min(_CHUNK_BYTES, int(left) - start)
                if rank == source:
                    dist.send(torch.frombuffer(bytearray(file.read(size)), dtype=torch.uint8), 0)
                else:
                    piece = torch.empty(size, dtype=torch.uint8)
                    dist.recv(piece, source)
                    file.write(piece.numpy())
