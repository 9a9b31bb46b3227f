"""Training functions of the GPU's tests."""

from __future__ import annotations

import io
import os
import signal
import time
from typing import Any

from airflow_hops.hops import TrainContext

BATCH = 8192


def network(context: TrainContext) -> Any:
    """Trains a network of two wide layers on batches as the reader gives them, and reports what it waited for.

    Parameters: ``epochs``; ``width`` of the layers; ``amp``, whether to compute in bfloat16; ``dies_at``, a step after
    which the rank is killed; ``noticed_at``, one after which rank 0 is asked to end.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(context.seed)
    width = context.params.get("width", 1024) if device.type == "cuda" else 16
    layers = [torch.nn.Linear(len(context.feature_outputs), width), torch.nn.ReLU(), torch.nn.Linear(width, width)]
    inner = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(width, 1), torch.nn.Sigmoid()).to(device)
    optimizer = torch.optim.SGD(inner.parameters(), 0.05, momentum=0.9)
    if saved := context.resumed_files():
        state = torch.load(io.BytesIO(saved["state.pt"]), weights_only=True)
        inner.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
    model = DistributedDataParallel(inner)
    steps = context.steps("train", BATCH)
    waited, began, rows = 0.0, time.monotonic(), 0
    for epoch in range(context.position.step // steps, context.params.get("epochs", 1)):
        context.begin_epoch(epoch)
        first = context.position.step % steps if epoch == context.position.step // steps else 0
        asked = time.monotonic()
        for number, (features, labels) in enumerate(context.batches("train", BATCH, shuffle=True, first_step=first)):
            waited += time.monotonic() - asked
            inputs = torch.stack([torch.from_numpy(column) for column in features.values()], 1).to(device)
            wanted = torch.from_numpy(labels).to(device).float()
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=bool(context.params.get("amp"))):
                answers = model(inputs).float().flatten()
            loss = torch.nn.functional.binary_cross_entropy(answers, wanted)
            loss.backward()
            optimizer.step()
            rows += len(labels)
            step = epoch * steps + first + number + 1
            if step == context.params.get("noticed_at") and context.rank == 0 and not saved:
                os.kill(os.getpid(), signal.SIGTERM)
            dies = step == context.params.get("dies_at") and not saved
            if context.should_checkpoint(every=0) or dies:
                contents = io.BytesIO()
                torch.save({"network": inner.state_dict(), "optimizer": optimizer.state_dict()}, contents)
                context.checkpoint_files(step, {"state.pt": contents.getvalue()})
                context.session.close()
                os.kill(os.getpid(), signal.SIGKILL)
            asked = time.monotonic()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.monotonic() - began
        context.report(
            (epoch + 1) * steps, loss=loss.item(), waited=waited / seconds, rows_per_second=rows / seconds, rows=rows
        )
        print(f"backend {device.type}:{dist.get_backend()}", flush=True)
    return model


def keras_on_torch(context: TrainContext) -> Any:
    """Trains a Keras 3 model, which is a module of PyTorch, on the GPU."""
    import keras
    import torch
    from torch.nn.parallel import DistributedDataParallel

    features, labels = context.table("train").tensors()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layers = [keras.Input((features.shape[1],)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1, "sigmoid")]
    inner = keras.Sequential(layers)
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.Adam(inner.parameters(), 1e-2)
    losses = []
    for step in range(50):
        rows = slice(step * 256, (step + 1) * 256)
        optimizer.zero_grad()
        answers = model(features[rows].to(device)).flatten()
        loss = torch.nn.functional.binary_cross_entropy(answers, labels[rows].float().to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"device {next(inner.parameters()).device.type}", flush=True)
    context.report(50, first=losses[0], last=losses[-1])
    return model


def on_jax(context: TrainContext) -> dict[str, Any]:
    """Trains a logistic regression in JAX on batches of the reader; returns its losses and its device."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def loss_of(weights: Any, inputs: Any, wanted: Any) -> Any:
        raw = inputs @ weights
        return jnp.mean(jnp.logaddexp(0, raw) - wanted * raw)

    step = jax.jit(jax.value_and_grad(loss_of))
    weights, losses = jnp.zeros(len(context.feature_outputs)), []
    for features, labels in context.batches("train", BATCH, shuffle=True):
        loss, gradient = step(weights, np.stack(list(features.values()), 1), labels.astype("float32"))
        weights = weights - 0.5 * gradient
        losses.append(float(loss))
    return {"first": losses[0], "last": losses[-1], "devices": [device.platform for device in jax.devices()]}


def keras_on_jax(context: TrainContext) -> dict[str, Any]:
    """Trains a Keras 3 model on JAX by Keras's own ``fit``; returns its losses and its device."""
    import jax
    import keras
    import numpy as np

    layers = [keras.Input((len(context.feature_outputs),)), keras.layers.Dense(64, "relu")]
    model = keras.Sequential([*layers, keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy")
    batches = ((np.stack(list(f.values()), 1), labels) for f, labels in context.batches("train", BATCH, shuffle=True))
    first = float(model.train_on_batch(*next(batches)))
    history = model.fit(batches, steps_per_epoch=context.steps("train", BATCH) - 1, verbose=0)
    return {
        "first": first,
        "last": history.history["loss"][-1],
        "backend": keras.backend.backend(),
        "devices": [device.platform for device in jax.devices()],
    }


def deep(context: TrainContext) -> Any:
    """Trains a network of 12 layers for four steps, in shards if ``sharded``; reports losses, prints memory.

    The memory is that which the process takes at most beyond what it had after two steps of a small network, for which
    PyTorch loads most of its modules. With ``noticed``, rank 0 gets a notice after the second step.
    """
    import resource

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(context.seed)
    rows, labels = torch.randn(256, len(context.feature_outputs)), torch.rand(256).round()

    def make(width: int) -> tuple[Any, Any]:
        layers = [torch.nn.Linear(rows.shape[1], width), torch.nn.Tanh()]
        for _ in range(12):
            layers.append(torch.nn.Linear(width, width).to(device))
            if context.params["sharded"]:
                fully_shard(layers[-1])
        model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1), torch.nn.Sigmoid()).to(device)
        model = fully_shard(model) if context.params["sharded"] else model
        return model, torch.optim.Adam(model.parameters(), 1e-3)

    def learn(model: Any, optimizer: Any, step: int) -> float:
        batch = slice(64 * step + context.rank, 64 * (step + 1), context.size)
        optimizer.zero_grad()
        answers = model(rows[batch].to(device)).flatten()
        loss = torch.nn.functional.binary_cross_entropy(answers, labels[batch].to(device))
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return float(total) / context.size

    small = make(8)
    for step in range(2):
        learn(*small, step)
    context.report(0, small=1.0)  # loads TensorBoard
    first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model, optimizer = make(context.params.get("width", 1024))
    start = context.restore(model, optimizer).step
    for step in range(start, 4):
        context.report(step + 1, loss=learn(model, optimizer, step))
        if context.params.get("noticed") and step == 1 and context.rank == 0 and not start:
            os.kill(os.getpid(), signal.SIGTERM)
        if context.should_checkpoint(every=0):
            context.checkpoint(model, step=step + 1, optimizer=optimizer)
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first) / 1024
    print(f"rank {context.rank} took {taken:.1f} MiB", flush=True)
    return model


def no_module(context: TrainContext) -> Any:
    """Returns what is not a module."""
    return {"weights": [context.rank]}


def noisy(context: TrainContext) -> Any:
    """Trains with batch normalization, dropout, and noise of NumPy and Python; a notice to rank 0 after two steps."""
    import random

    import numpy as np
    import torch
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.use_deterministic_algorithms(True)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(context.seed + context.rank)
    width = len(context.feature_outputs)
    layers = [torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(context.restore(model, optimizer).step, 5):
        noise = np.random.rand(16, width).astype(np.float32) + random.random()
        optimizer.zero_grad()
        loss = model((torch.randn(16, width) + torch.from_numpy(noise)).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        if context.params.get("noticed") and step == 1 and context.rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        if context.should_checkpoint(every=0):
            context.checkpoint(model, step=step + 1, optimizer=optimizer)
    return model
