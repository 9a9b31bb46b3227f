"""A mapped task that says how far it is; the second of its instances fails on the way."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task


def learn(context, number: int) -> Any:
    """Reports two epochs of four, and then ends as its number says."""
    for epoch in (1, 2):
        context.progress(epoch / 4, f"epoch {epoch} of 4", {"loss": 1 / epoch, "val_loss": 1.1 / epoch})
    if number == 1:
        raise ValueError("the loss of <b>shard 7</b> is not a number")
    return number


with DAG("task_progress", schedule=None):
    task.hops(learn, task_id="learn").expand(number=[0, 1])
