"""Training functions on ranks of torch.distributed."""

from __future__ import annotations

import io
import os
import signal
import time
from typing import Any

from airflow_hops.hops import TrainContext


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
                context.close()
                if context.should_stop():
                    raise AssertionError("nobody has asked to stop")
                if context.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
    return model
