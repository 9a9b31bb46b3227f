"""One loop of PyTorch on two ranks, as ``TorchTrainOperator`` and as ``torchrun`` run it; rank 0 writes its rate.

As a program, ``ours`` trains as the operator's step does; under ``torchrun`` it is what runs on each rank.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH = 64
FEATURES = 32
RANKS = 2


def loop(features: Any, labels: Any, steps: int, report: Callable[[int, float], None]) -> tuple[float, Any]:
    """Trains a small network for so many steps; steps a second, and the network."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    layers = [torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
    model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(256, 1), torch.nn.Sigmoid()))
    optimizer = torch.optim.Adam(model.parameters())
    began = time.monotonic()
    for step in range(steps):
        if step == steps // 10:
            began = time.monotonic()  # the first steps allocate
        first = step * BATCH % (len(features) - BATCH)
        optimizer.zero_grad()
        found = model(features[first : first + BATCH]).flatten()
        loss = torch.nn.functional.binary_cross_entropy(found, labels[first : first + BATCH].float())
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            report(step, loss.item())
    return (steps - steps // 10) / (time.monotonic() - began), model


def train(context: Any) -> Any:
    """The training function."""
    features, labels = context.table("train").tensors()
    rate, model = loop(features, labels, context.params["steps"], lambda step, loss: context.report(step, loss=loss))
    if context.rank == 0:
        Path(context.params["rate"]).write_text(str(rate))
    return model


def train_ours(work: Path, steps: int) -> None:
    """Trains as the step of a ``TorchTrainOperator`` does."""
    from airflow_hops.core.artifacts.properties import ExamplesProperties
    from airflow_hops.core.training.options import TORCH, TrainingOptions
    from airflow_hops.ml.training.stage import Training, train_model

    params = {"steps": steps, "rate": str(work / "rate")}
    options = TrainingOptions(train=f"{__spec__.name}:train", params=params, strategy=TORCH, np=RANKS)
    data = ExamplesProperties(label="label", splits=("train", "eval"))
    train_model(Training(options, work / "examples", work / "model", data))


def train_under_torchrun(work: Path, steps: int) -> None:
    """Trains a rank of ``torchrun``."""
    import numpy as np
    import pyarrow.parquet as pq
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    table = pq.read_table(work / "examples" / "train").to_pandas()
    share = table.iloc[dist.get_rank() :: RANKS]
    # Row by row in memory, as the other way has them: pandas keeps columns together.
    features = torch.from_numpy(np.ascontiguousarray(share.drop(columns="label").to_numpy("float32")))
    labels = torch.from_numpy(share["label"].to_numpy())
    rate, _ = loop(features, labels, steps, lambda step, loss: None)
    if dist.get_rank() == 0:
        (work / "rate").write_text(str(rate))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    (train_ours if sys.argv[1] == "ours" else train_under_torchrun)(Path(sys.argv[2]), int(sys.argv[3]))
