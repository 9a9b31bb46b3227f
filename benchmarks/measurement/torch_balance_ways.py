"""The training of the balance benchmark on ranks of PyTorch: ranks that take a certain time for each row."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from airflow_hops.extensions.ranks import BalancedBatches
from airflow_hops.ml.training.context import TrainContext


def train(context: TrainContext) -> Any:
    """Trains on ranks of which each has its time for a row; reports the seconds from each epoch's end to the next."""
    params = context.params
    layers = [torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1), torch.nn.Sigmoid()]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    balanced = BalancedBatches(context, model, "train", params["batch_size"])
    ends: list[float] = []
    for epoch in range(params["epochs"]):
        context.begin_epoch(epoch)
        if params["balance"]:
            batches = balanced.epoch(shuffle=True)
        else:
            batches = context.batches("train", params["batch_size"], shuffle=True)
        for features, labels, *weight in batches:
            time.sleep(params["row_s"][context.rank] * len(labels))
            optimizer.zero_grad()
            inputs = torch.cat([torch.from_numpy(each).float().view(len(labels), -1) for each in features.values()], 1)
            answers = model(inputs).flatten()
            loss = torch.nn.functional.binary_cross_entropy(answers, torch.from_numpy(labels).float())
            (loss * weight[0] if weight else loss).backward()
            optimizer.step()
        ends.append(time.monotonic())
        if epoch:
            context.report(epoch, seconds=ends[-1] - ends[-2])
    return model
