"""Checkpoints of modules and optimizers in PyTorch's distributed format: each rank writes what it holds.

Beside them are, by rank, the states of random generators, buffers, which ``DistributedDataParallel`` lets differ until
the next forward pass, and the user's other objects, such as schedulers, of which other ranks write what rank 0 has not.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.generator_states import restore_generators, save_generators

if TYPE_CHECKING:
    import torch

_CHUNK_BYTES = 16 << 20


def save_state(module: torch.nn.Module, optimizer: object, others: Mapping[str, object], folder: Path) -> None:
    """Writes the state of a module, its optimizer, and other objects; every rank must call it.

    Each rank writes its shards to its folder, and sends the file to rank 0, whose folder then holds all.

    Raises:
        BadInput: it is not a module, or a parameter contains NaN or infinity.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter, save

    check_finite(check_module(module), "no checkpoint was written. Lower")
    optimizer, others = _split(optimizer, others)
    rank, size = dist.get_rank(), dist.get_world_size()
    own = {"random": _random_state(), "buffers": _bytes(dict(module.named_buffers()))}
    objects = _bytes({name: _read(each) for name, each in others.items()})
    by_rank: list[str] = [""] * size
    dist.all_gather_object(by_rank, hashlib.sha256(objects).hexdigest())
    if rank == 0 or by_rank[rank] != by_rank[0]:
        own["others"] = objects
    state = _state(module, optimizer)
    state |= {f"{n}-{rank}-of-{size}": torch.frombuffer(bytearray(each), dtype=torch.uint8) for n, each in own.items()}
    save(state, storage_writer=FileSystemWriter(folder), planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True))
    for source in range(1, size):
        _bring(folder, source)


def load_state(module: torch.nn.Module, optimizer: object, others: Mapping[str, object], folder: Path) -> None:
    """Reads the state that any number of ranks has written; every rank must call it.

    Raises:
        BadInput: the folder holds no such state, or that of another module or other objects.
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
    reader, (optimizer, others) = FileSystemReader(folder), _split(optimizer, others)
    state, stored = _state(check_module(module), optimizer), reader.read_metadata().state_dict_metadata
    of_rank = f"-{dist.get_rank()}-of-{dist.get_world_size()}"
    entries = {name: f"{name}{of_rank}" for name in ("random", "buffers", "others") if f"{name}{of_rank}" in stored}
    entries = {"others": next(name for name in stored if name.startswith("others-0-of-")), **entries}
    state |= {entry: torch.empty(stored[entry].size, dtype=torch.uint8) for entry in entries.values()}
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
    own = {name: state[entry].numpy().tobytes() for name, entry in entries.items()}
    for name, buffer in _loaded(own.get("buffers", _bytes({}))).items():
        module.get_buffer(name).copy_(buffer)
    objects = _loaded(own["others"])
    if objects.keys() != others.keys():
        raise BadInput(
            f"{folder}: the checkpoint has others={sorted(objects)}, and this training has {sorted(others)}; give the "
            "same objects, or delete the checkpoint to start again"
        )
    for name, each in others.items():
        _write(each, objects[name])
    if "random" in own:
        _restore_random_state(own["random"])


def check_others(module: object, optimizer: object, others: Mapping[str, object]) -> None:
    """Checks that a checkpoint can hold these objects.

    Raises:
        BadInput: one has no state, or one that cannot be read without running code, or an optimizer updates parameters
            of a module that is not among them.
    """
    import torch

    for name, each in others.items():
        try:
            _loaded(_bytes(_read(each)))
        except Exception as error:
            raise BadInput(
                f"others[{name!r}] is a {type(each).__name__} whose state no checkpoint can hold ({error}); expected "
                "an object with state_dict() and load_state_dict(), of tensors, numbers, text, lists and dicts, or a "
                "torch.Generator"
            ) from None
    modules = [module, *(each for each in others.values() if isinstance(each, torch.nn.Module))]
    parameters = {id(each) for every in modules for each in every.parameters()}
    optimizers = [each for each in (optimizer, *others.values()) if isinstance(each, torch.optim.Optimizer)]
    if any(
        id(each) not in parameters for every in optimizers for group in every.param_groups for each in group["params"]
    ):
        raise BadInput(
            "an optimizer updates a parameter of a module that the checkpoint does not hold; give the module to "
            "context.restore and context.checkpoint, like others={'generator': generator}"
        )


def _split(
    optimizer: torch.optim.Optimizer | None, others: Mapping[str, object]
) -> tuple[torch.optim.Optimizer | None, Mapping[str, object]]:
    """Puts an optimizer whose step needs a function (LBFGS) among the others: the distributed format makes a step."""
    if optimizer is None or signature(optimizer.step).parameters["closure"].default is not Parameter.empty:
        return optimizer, others
    return None, {"the optimizer": optimizer, **others}


def _read(value: Any) -> Any:
    import torch

    return value.get_state() if isinstance(value, torch.Generator) else value.state_dict()


def _write(value: Any, state: object) -> None:
    import torch

    value.set_state(state) if isinstance(value, torch.Generator) else value.load_state_dict(state)


def _bytes(value: object) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _loaded(content: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(content), weights_only=True)


def check_module(model: object) -> torch.nn.Module:
    """Returns the model; raises BadInput if it is not a ``torch.nn.Module``."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise BadInput(f"the model is a {type(model).__name__}, expected a torch.nn.Module")
    return model


def check_finite(module: torch.nn.Module, advice: str = "lower") -> None:
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


def _state(module: object, optimizer: object) -> dict[str, Any]:
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
