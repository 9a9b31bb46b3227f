"""Training functions on ranks of torch.distributed."""

from __future__ import annotations

import io
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_hops.core.errors import BadInput
from airflow_hops.hops import TrainContext
from airflow_hops.ml.training import training_state
from airflow_hops.ml.training.checkpoints import read_checkpoint
from airflow_hops.ml.training.gang import Channel


def train(context: TrainContext) -> Any:
    """A small network, in step on all ranks, or, with ``alone``, each by itself; with ``dies``, once killed.

    With ``own_mean``, each rank subtracts the mean of its own rows, in a tensor that PyTorch does not know.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(context.seed)
    features, labels = context.table("train").tensors()
    if context.params.get("keras"):
        import keras

        layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(1, "sigmoid")]
        network = keras.Sequential([keras.Input((features.shape[1],)), *layers])
    else:

        class Centered(torch.nn.Linear):
            mean = torch.zeros(features.shape[1])

            def forward(self, rows: Any) -> Any:
                return super().forward(rows - self.mean)

        first = Centered(features.shape[1], 8)
        if context.params.get("own_mean"):
            first.mean = features.mean(0)
        network = torch.nn.Sequential(
            first, torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 1), torch.nn.Sigmoid()
        )
    saved = context.resumed_files()
    if saved:
        network.load_state_dict(torch.load(io.BytesIO(saved["network.pt"]), weights_only=True))
        print(f"resumed after step {context.position.step}", flush=True)
    model = network if context.params.get("alone") else DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    batch = 50
    for step in range(context.position.step, 20):
        first_row = step * batch % (len(features) - batch)
        rows = slice(first_row, first_row + batch)
        optimizer.zero_grad()
        result = model(features[rows]).flatten()
        loss = torch.nn.functional.binary_cross_entropy(result, labels[rows].float())
        loss.backward()
        optimizer.step()
        context.report(step + 1, loss=loss.item())
        time.sleep(context.params.get("step_s", 0))
        if step + 1 == 10:
            contents = io.BytesIO()
            torch.save(network.state_dict(), contents)
            context.checkpoint_files(10, {"network.pt": contents.getvalue()})
            if context.params.get("dies") and not saved:
                context.session.close()
                if context.should_stop():
                    raise AssertionError("nobody has asked to stop")
                if context.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
    return model


STEPS = 6
Make = Callable[[Any], Any]


def resume_each(context: TrainContext) -> Any:
    """Trains with each scheduler, average and scaler; resumes after each step, and compares.

    Raises:
        AssertionError: a resumed training differs, or one that cannot be resumed was not refused.
    """
    import torch
    from torch.optim import lr_scheduler, swa_utils

    ema = swa_utils.get_ema_multi_avg_fn(0.9)
    schedulers: dict[str, Make] = {
        "steps": lambda optimizer: lr_scheduler.StepLR(optimizer, 1, 0.5),
        "milestones": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.1),
        "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 5),
        "cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
        "cyclic": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, 2, mode="exp_range", gamma=0.9),
        "sequence": lambda optimizer: lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.ConstantLR(optimizer, 0.1, 2), lr_scheduler.ExponentialLR(optimizer, 0.7)], [3]
        ),
        "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0),
        "averages": lambda optimizer: swa_utils.SWALR(optimizer, 0.01, 2),
    }
    others: dict[str, Make] = {
        "average": lambda model: swa_utils.AveragedModel(model, multi_avg_fn=ema),
        "scaler": lambda model: torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2),
        "generator": lambda model: torch.Generator().manual_seed(3),
    }
    cases: dict[str, dict[str, Make]] = {name: {"scheduler": make} for name, make in schedulers.items()}
    cases |= {"others": others, "no steps": {"lbfgs": lambda parameters: torch.optim.LBFGS(parameters, max_iter=3)}}
    differing = []
    for name, parts in cases.items():
        whole = _train_case(context, name, parts)
        for step in (2, 5, STEPS):
            resumed = _train_case(context, name, parts, resumed_at=step)
            differing += [f"{name} after step {step}: {key}" for key in whole if whole[key] != resumed[key]]
    try:
        _train_case(context, "stateless", {"scheduler": lambda optimizer: object()})
        differing.append("an object without a state was not refused")
    except BadInput as refused:
        differing += [] if "others['scheduler'] is a object whose state" in str(refused) else [str(refused)]
    assert not differing, differing
    return _network()


def _network() -> Any:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.3), torch.nn.Linear(5, 1)]
    layers.append(torch.nn.Sigmoid())
    return DistributedDataParallel(torch.nn.Sequential(*layers))


def _train_case(context: TrainContext, name: str, parts: dict[str, Make], *, resumed_at: int = 0) -> dict[str, Any]:
    """Trains on rows that differ by rank; returns weights with this rank's buffers, the learning rate, and draws."""
    import torch

    rank, model = replace(context.session.rank, channel=Channel()), _network()
    random.seed(rank.number)
    folder = context.checkpoint_dir.parent / "cases" / name  # rank 0 writes to it, and all read
    resumed_from = read_checkpoint(folder / f"step-{resumed_at:08d}") if resumed_at else None
    training_state._KEPT = STEPS
    options, place = context.session.options, folder / "resumed" if resumed_at else folder
    state = training_state.TrainingState(rank, options, place, resumed_from)
    lbfgs = parts.get("lbfgs")
    optimizer = lbfgs(model.parameters()) if lbfgs else torch.optim.SGD(model.parameters(), 0.1, 0.9)
    others = {
        name: make(optimizer if name == "scheduler" else model) for name, make in parts.items() if name != "lbfgs"
    }
    scheduler, average, scaler = (others.get(name) for name in ("scheduler", "average", "scaler"))
    for step in range(state.restore(model, optimizer, others).step, STEPS):
        rows = torch.randn(8, 3, generator=torch.Generator().manual_seed(100 * rank.number + step))
        noise = torch.randn(8, 3, generator=others["generator"]) if "generator" in others else random.random()

        def loss(rows: Any = rows, noise: Any = noise) -> Any:
            optimizer.zero_grad()
            value = ((model(rows + 0.1 * noise) - rows.sum(1, keepdim=True)) ** 2).mean()
            (scaler.scale(value) if scaler else value).backward()
            return value

        value = float(optimizer.step(loss) if lbfgs else loss())
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        elif not lbfgs:
            optimizer.step()
        if average is not None:
            average.update_parameters(model)
        if scheduler is not None:
            plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
            scheduler.step(*([float(rank.gather([value])[0][0])] if plateau else []))
        state.move(step=step + 1)
        state.save(model, optimizer, others)
    state.close()
    rank.gather([0.0])  # rank 0 has written its checkpoints
    tensors = [*model.state_dict().values(), *(average.state_dict().values() if average else ())]
    return {
        "weights": [tensor.numpy().tobytes() for tensor in tensors],
        "rate": optimizer.param_groups[0]["lr"],
        "draws": [random.random(), float(torch.rand(()))],
    }
