"""Checkpoints: the complete state of a training, written atomically, from which it continues as if uninterrupted.

A checkpoint is a folder ``step-<n>``: ``variables.npz`` (model and optimizers) or files of another framework,
``callbacks.npz`` (what the callbacks hold), ``rank-<n>.npz`` (each rank's own state) and
``checkpoint.json``, which has the position of the training and the checksums of the other files. It is created by a
rename, so that the previous one remains after a kill at any moment.
"""

from __future__ import annotations

import json
import logging
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops import __version__
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.json_files import read_json
from airflow_hops.core.processes.files import sync

# Writing: fill a hidden folder, fsync its files and itself, rename it to step-<n>, fsync the parent, then remove old
# checkpoints, hiding each by a rename first. A kill leaves a hidden folder, which the next write removes. Each step is
# written by one process (rank 0) and one thread; readers (the copier to the store, a retry) need no lock, since a
# visible folder is complete and never changes.

CHECKPOINT_NAME = "checkpoint.json"
CHECKPOINT_GLOB = "step-*"
_FORMAT = 4
_VARIABLES_NAME = "variables.npz"
_CALLBACKS_NAME = "callbacks.npz"
_FURTHER = "further"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Position:
    """The position of a training.

    Attributes:
        step: Steps done, over all epochs.
        epoch: Epochs done.
        batch: Steps done of the current epoch.
        fit: Finished calls of ``context.fit`` in this training function.
        stopped: Whether all ranks agreed to stop.
        parts: Of the current epoch, its number, the number of ranks and their steps, for each earlier number of ranks.
        shares: Of each change of unequal shares, the call of ``context.fit``, the first epoch, and the rows by rank.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    fit: int = 0
    stopped: bool = False
    parts: tuple[tuple[int, int, int], ...] = ()
    shares: tuple[tuple[int, int, tuple[int, ...]], ...] = ()

    def rows_by_rank(self, ranks: int) -> tuple[int, ...]:
        """Returns the rows of each rank in the current epoch of this call of ``fit``; empty if shares are equal."""
        last = self.shares[-1] if self.shares else (self.fit, 0, ())
        return last[2] if last[0] == self.fit and len(last[2]) == ranks else ()

    def __str__(self) -> str:
        place = f"after epoch {self.epoch}" if self.batch == 0 else f"after step {self.batch} of epoch {self.epoch + 1}"
        return f"{place} (step {self.step})"


@dataclass(frozen=True)
class Snapshot:
    """A training at one moment, in memory.

    Attributes:
        position: Position of the training.
        variables: Rank 0's arrays of the model and its optimizer, by name.
        rank_states: State of each rank; see :mod:`airflow_hops.ml.training.rank_state`.
        history: Metrics of each epoch done.
        weights: Checksum of the weights after each epoch done.
        callbacks: States of rank 0's callbacks; see :mod:`airflow_hops.ml.training.callback_states`.
        parts: Folder of files instead of variables, which becomes the checkpoint's.
        strategy: Strategy of the training.
    """

    position: Position
    variables: Mapping[str, np.ndarray] = field(repr=False)
    rank_states: tuple[bytes, ...] = field(repr=False, default=())
    history: tuple[Mapping[str, float], ...] = ()
    weights: tuple[int, ...] = ()
    callbacks: Mapping[str, np.ndarray] = field(repr=False, default_factory=dict)
    parts: Path | None = None
    strategy: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """A finished checkpoint on disk, which was saved with ``ranks`` ranks of a strategy (empty if unknown)."""

    path: Path
    position: Position
    ranks: int
    history: tuple[Mapping[str, float], ...]
    strategy: str = ""

    @classmethod
    def of(cls, path: Path, description: Mapping[str, Any]) -> Checkpoint:
        """Returns the checkpoint that ``checkpoint.json`` describes."""
        position = {"parts": (), "shares": (), **description["position"]}
        position["parts"] = tuple((epoch, ranks, steps) for epoch, ranks, steps in position["parts"])
        position["shares"] = tuple((fit, epoch, tuple(rows)) for fit, epoch, rows in position["shares"])
        history, strategy = tuple(description["history"]), description.get("strategy", "")
        return cls(path, Position(**position), description["ranks"], history, strategy)


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads the description of a checkpoint.

    Raises:
        BadInput: another version of this package wrote it.
        HopsError: it is damaged.
    """
    return Checkpoint.of(path, _read_description(path))


def check_files(path: Path) -> None:
    """Compares a checkpoint's files with their checksums.

    Raises:
        BadInput: another version of this package wrote it.
        HopsError: it is damaged; the message names the file.
    """
    for name, crc in _read_description(path)["files"].items():
        try:
            result = _crc(path / name)
        except OSError as error:
            raise HopsError(f"{path / name}: cannot be read ({error})") from None
        if result != crc:
            raise HopsError(f"{path / name}: damaged: its CRC-32 is {result:08x}, expected {crc:08x}")


def copy_variables(model: object, optimizer: object = None) -> dict[str, np.ndarray]:
    """Copies the variables of a Keras model and its optimizer (needed if the model was not compiled with it)."""
    return {name: variable.numpy() for name, variable in _variables(model, optimizer).items()}


def write_checkpoint(folder: Path, snapshot: Snapshot, *, keep: int) -> Path:
    """Writes a checkpoint and returns its folder; removes the oldest checkpoints except ``keep``.

    Raises:
        HopsError: it cannot be written; earlier ones remain.
        BadInput: a weight is NaN or infinite.
    """
    bad = [
        name
        for name, values in snapshot.variables.items()
        if values.dtype.kind == "f" and not name.startswith(_FURTHER) and not np.isfinite(values).all()
    ]
    if bad:
        raise BadInput(
            f"variable {bad[0].partition('|')[2]!r} holds values that are not numbers {snapshot.position}; no "
            "checkpoint was written. Lower the learning rate, clip gradients, or look for such values in the "
            "examples"
        )
    path = folder / f"step-{snapshot.position.step:08d}"
    staging = folder / f".{path.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for rubbish in folder.glob(f".{CHECKPOINT_GLOB}"):
            shutil.rmtree(rubbish, ignore_errors=True)
        if snapshot.parts is not None:
            snapshot.parts.rename(staging)
        else:
            staging.mkdir()
            np.savez(staging / _VARIABLES_NAME, **snapshot.variables)  # type: ignore[arg-type]
        if snapshot.callbacks:
            np.savez(staging / _CALLBACKS_NAME, **snapshot.callbacks)  # type: ignore[arg-type]
        for rank, state in enumerate(snapshot.rank_states):
            (staging / _rank_name(rank)).write_bytes(state)
        files = {file.name: _crc(file) for file in sorted(staging.iterdir())}
        description = {
            "format": _FORMAT,
            "airflow_hops": __version__,
            "position": asdict(snapshot.position),
            "ranks": len(snapshot.rank_states),
            "strategy": snapshot.strategy,
            "history": list(snapshot.history),
            "weights": list(snapshot.weights),
            "files": files,
        }
        (staging / CHECKPOINT_NAME).write_text(json.dumps(description))
        for file in (*staging.iterdir(), staging):
            sync(file)
        if path.exists():
            shutil.rmtree(path)
        staging.rename(path)
        sync(folder)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise HopsError(
            f"{path}: the checkpoint cannot be written ({error}); free some space there. Earlier checkpoints are "
            "complete"
        ) from error
    for old in sorted(folder.glob(CHECKPOINT_GLOB))[:-keep]:
        hidden = old.rename(folder / f".{old.name}")  # a concurrent copy sees it complete or not at all
        shutil.rmtree(hidden, ignore_errors=True)
    return path


def load_snapshot(checkpoint: Checkpoint) -> Snapshot:
    """Reads a checkpoint.

    Raises:
        BadInput: another version of this package wrote it.
        HopsError: it cannot be read.
    """
    path = checkpoint.path
    value = _read_description(path)
    try:
        variables = _read_arrays(path / _VARIABLES_NAME)
        callbacks = _read_arrays(path / _CALLBACKS_NAME) if (path / _CALLBACKS_NAME).exists() else {}
        states = tuple((path / _rank_name(rank)).read_bytes() for rank in range(checkpoint.ranks))
    except (OSError, ValueError, zlib.error) as error:
        raise HopsError(f"{path}: cannot be read ({error}); delete the checkpoint to start again") from None
    return Snapshot(checkpoint.position, variables, states, checkpoint.history, tuple(value["weights"]), callbacks)


def restore_variables(snapshot: Snapshot, model: Any, optimizer: Any = None, *, where: str = "the checkpoint") -> None:
    """Sets the variables of a built model and its optimizer to those of a snapshot, saved with any number of ranks.

    Raises:
        BadInput: the snapshot, named by ``where``, is of another architecture.
    """
    variables, values = _variables(model, optimizer), snapshot.variables
    for name in [*variables, *values]:
        expected = tuple(variables[name].shape) if name in variables else None
        result = values[name].shape if name in values else None
        if expected != result:
            raise BadInput(
                f"{where}: variable {name.partition('|')[2]!r} has shape {result} there and {expected} in the model; "
                "the checkpoint is of another architecture: delete it to start again, or restore the model that it "
                "was made with"
            )
    for name, variable in variables.items():
        array = values[name]
        if array.dtype.kind == "V":  # NumPy 1.26 (jax-ml/ml_dtypes#41): saves no names such as bfloat16
            array = array.view(variable.numpy().dtype)
        variable.assign(array)


def _read_description(path: Path) -> Mapping[str, Any]:
    file = path / CHECKPOINT_NAME
    try:
        value: Mapping[str, Any] = read_json(file)
        written, by = value.get("format", 1), value.get("airflow_hops", "an earlier version")
    except (OSError, ValueError, AttributeError) as error:
        raise HopsError(f"{file}: cannot be read ({error})") from None
    if written != _FORMAT:
        raise BadInput(
            f"{file}: a checkpoint of format {written}, written by airflow-hops {by}; airflow-hops {__version__} reads "
            f"format {_FORMAT}. Finish the training with the version that started it, or delete the checkpoint to "
            "start again"
        )
    return value


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(16 << 20):
            crc = zlib.crc32(piece, crc)
    return crc


def _rank_name(rank: int) -> str:
    return f"rank-{rank:05d}.npz"


def _variables(model: Any, optimizer: Any = None) -> dict[str, Any]:
    """Returns weights and optimizers' state by position and path, since paths alone need not be unique.

    Paths begin with layer names, which count up within a process, so only their last part is comparable.
    """
    from airflow_hops.ml.training.rank_state import further_variables

    optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
    results = {f"model-{i:04d}|{_path(v)}": v for i, v in enumerate(model.weights)}
    if optimizer is not None:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        results |= {f"optimizer-{i:04d}|{_path(v)}": v for i, v in enumerate(optimizer.variables)}
    further = enumerate(further_variables(model, optimizer))
    return results | {f"{_FURTHER}-{i:04d}|{_path(v)}": v for i, v in further}


def _path(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name)).rpartition("/")[2]
