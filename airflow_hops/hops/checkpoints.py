"""Checkpoints: the variables of a model and its optimizer after an epoch, each whole or not there.

A checkpoint is a folder ``epoch-<n>`` with ``variables.npz`` and ``checkpoint.json``. It appears by a rename, so that a
kill at any moment leaves the one before.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.artifacts import BadInput

CHECKPOINT_NAME = "checkpoint.json"
_VARIABLES_NAME = "variables.npz"


@dataclass(frozen=True)
class Checkpoint:
    """A finished checkpoint.

    Attributes:
        path: Its folder.
        epochs: Epochs done.
        history: Metrics of each of them.
    """

    path: Path
    epochs: int
    history: tuple[Mapping[str, float], ...]


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in its folder."""
    value = json.loads((path / CHECKPOINT_NAME).read_text())
    return Checkpoint(path, value["epochs"], tuple(value["history"]))


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint of the most epochs in a folder, or None."""
    found = [read_checkpoint(path.parent) for path in folder.glob(f"epoch-*/{CHECKPOINT_NAME}")]
    return max(found, key=lambda checkpoint: checkpoint.epochs, default=None)


def save_checkpoint(
    folder: Path, model: Any, *, epochs: int, history: Sequence[Mapping[str, float]], keep: int
) -> Path:
    """Writes a checkpoint and removes the oldest beyond ``keep``.

    Args:
        folder: Where checkpoints go.
        model: A compiled Keras model.
        epochs: Epochs done.
        history: Metrics of each of them.
        keep: How many checkpoints to keep.

    Returns:
        The checkpoint's folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rubbish in folder.glob(".epoch-*"):
        shutil.rmtree(rubbish, ignore_errors=True)
    path = folder / f"epoch-{epochs:04d}"
    staging = folder / f".{path.name}"
    staging.mkdir()
    variables = _variables(model)
    np.savez(staging / _VARIABLES_NAME, **{name: variable.numpy() for name, variable in variables.items()})
    (staging / CHECKPOINT_NAME).write_text(json.dumps({"epochs": epochs, "history": list(history)}))
    for file in staging.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    if path.exists():
        shutil.rmtree(path)
    staging.rename(path)
    for old in sorted(folder.glob("epoch-*"))[:-keep]:
        hidden = old.rename(folder / f".{old.name}")  # who copies it meanwhile finds it whole or gone
        shutil.rmtree(hidden, ignore_errors=True)
    return path


def restore_checkpoint(checkpoint: Checkpoint, model: Any) -> None:
    """Sets the variables of a model and its optimizer to a checkpoint's.

    Raises:
        BadInput: the checkpoint is of another architecture, or cannot be read.
    """
    variables = _variables(model)
    path = checkpoint.path / _VARIABLES_NAME
    try:
        with np.load(path, allow_pickle=False) as stored:
            values = {name: stored[name] for name in stored.files}
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be read ({error}); delete the checkpoint to start anew") from None
    for name in [*variables, *values]:
        expected = tuple(variables[name].shape) if name in variables else None
        found = values[name].shape if name in values else None
        if expected != found:
            raise BadInput(
                f"{path}: variable {name.partition('|')[2]!r} has shape {found} there and {expected} in the model; the "
                "checkpoint is of another architecture: delete it to start anew"
            )
    for name, variable in variables.items():
        variable.assign(values[name])


def _variables(model: Any) -> dict[str, Any]:
    """Weights and optimizer state by position and path: paths alone need not be unique.

    Paths begin with the layers' own names, which count up within a process, so only their last part is telling.
    """
    optimizer = getattr(model, "optimizer", None)
    found = {f"model-{i:04d}|{_path(v)}": v for i, v in enumerate(model.weights)}
    if optimizer is not None:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        found |= {f"optimizer-{i:04d}|{_path(v)}": v for i, v in enumerate(optimizer.variables)}
    return found


def _path(variable: Any) -> str:
    return str(variable.path).rpartition("/")[2]
