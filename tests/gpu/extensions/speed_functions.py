"""Training functions whose rows are divided by the ranks' speeds."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from airflow_hops.extensions.ranks import BalancedBatches
from airflow_hops.hops import TrainContext


def documented(context: TrainContext) -> Any:
    """Trains with the loop of balanced batches that the page on ranks has."""
    page = (Path(__file__).parents[3] / "docs" / "extensions" / "ranks.md").read_text()
    (source,) = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "BalancedBatches" in each]
    names: dict[str, Any] = {}
    exec(source, names)
    return names["train"](context)


def balanced(context: TrainContext) -> Any:
    """Trains a logistic regression on balanced batches, and writes down each rank's rows, and the weights at the end.

    Parameters: ``notes``, a folder; ``batch``, rows of a step; ``row_s``, seconds of a row on each rank; ``every``,
    steps between checkpoints; ``signal`` and ``at``, a signal that rank 0 gets after a step of the first try;
    ``model`` and ``forgets``, mistakes.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    params, device = context.params, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, notes = params["batch"], Path(params["notes"])

    class Slow(torch.nn.Linear):
        def forward(self, rows: Any) -> Any:
            time.sleep(params["row_s"][context.rank] * len(rows))
            return super().forward(rows)

    inner = Slow(len(context.feature_outputs), 1)
    for parameter in inner.parameters():
        torch.nn.init.zeros_(parameter)
    if not torch.distributed.is_initialized():
        BalancedBatches(context, inner, "train", batch)
    layers = [torch.nn.SyncBatchNorm(1)] if params.get("model") == "synchronized" else []
    model = DistributedDataParallel(torch.nn.Sequential(inner, *layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    others = {"plain": inner, "untrained": DistributedDataParallel(torch.nn.Linear(1, 1).to(device))}
    step, steps = context.restore(model, optimizer).step, context.steps("train", batch)
    balanced = BalancedBatches(context, others.get(params.get("model"), model), "train", batch)
    for epoch in range(step // steps, params["epochs"]):
        context.begin_epoch(epoch)
        if params.get("forgets") and context.resumed_from:
            next(context.batches("train", batch, shuffle=True, first_step=step % steps))
        for features, labels, weight in balanced.epoch(shuffle=True, first_step=step % steps):
            inputs = torch.stack([torch.from_numpy(column) for column in features.values()], 1).to(device)
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits
            (weight * loss(model(inputs).flatten(), torch.from_numpy(labels).float().to(device))).backward()
            optimizer.step()
            with (notes / f"rank-{context.rank}").open("a") as stream:
                stream.write(json.dumps([step, inputs.tolist(), labels.tolist(), weight]) + "\n")
            step += 1
            if context.rank == 0 and context.resumed_from is None and step == params.get("at"):
                os.kill(os.getpid(), params["signal"])
            if context.should_checkpoint(params.get("every", 0)):
                context.checkpoint(model, step=step, epoch=step // steps, batch=step % steps, optimizer=optimizer)
    state = {name: value.tolist() for name, value in inner.state_dict().items()}
    (notes / "state").write_text(json.dumps(state))
    return model
