"""Trains a model with Horovod: a user's ``train(context)`` on every rank of a gang, and the model that comes out of it.

Importing this module imports TensorFlow and Horovod, so that the ranks, which are forked, have them already.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy
import tensorflow as tf

from airflow_hops.artifacts import Artifact, BadInput, HopsError, Manifest, RowCounts
from airflow_hops.hops.checkpoints import Checkpoint
from airflow_hops.hops.context import TrainContext
from airflow_hops.hops.examples import row_count
from airflow_hops.hops.keras import check_weights
from airflow_hops.protocol import format_record
from airflow_hops.runtime.checkpoint_state import CheckpointState
from airflow_hops.runtime.context import StepContext, resolve
from airflow_hops.runtime.feature_specs import FeatureSpecs
from airflow_hops.runtime.gang import run_gang
from airflow_hops.runtime.rank import Channel, Placement
from airflow_hops.runtime.transform_graph import SIGNATURE, export_serving_model

TRAIN_SPLIT = "train"


@dataclass(frozen=True)
class Training:
    """What is to be trained.

    Attributes:
        function: ``module:function``, called as ``function(context)`` on every rank; returns a compiled Keras 3 model.
        examples: Folder of the transformed examples: splits, ``transform_graph/`` and ``features.json``.
        output: Folder to write to: ``saved_model/``, ``checkpoints/``, ``tensorboard/``, ``logs/``, ``training.json``.
        params: Hyperparameters.
        ranks: Number of ranks.
        seed: Seed of weights and of the order of rows.
        stall_timeout_s: Seconds without a sign of life from a rank after which the gang is ended.
        resume_from: A checkpoint to begin from, or None.
    """

    function: str
    examples: Path
    output: Path
    params: Mapping[str, Any] = field(default_factory=dict)
    ranks: int = 2
    seed: int = 0
    stall_timeout_s: float = 300.0
    resume_from: Checkpoint | None = None

    @property
    def threads(self) -> int:
        """Threads of each rank's TensorFlow: this machine's cores divided among the ranks."""
        return max(1, len(os.sched_getaffinity(0)) // self.ranks)


def run(
    context: StepContext,
    *,
    train: str,
    params: dict[str, Any] | None = None,
    np: int = 2,
    seed: int | None = None,
    stall_timeout_s: float = 300.0,
) -> Artifact:
    """The step: trains on the artifact in the role ``examples``, from the last checkpoint of an earlier try.

    Args:
        context: The step's.
        train: ``module:function`` of the user.
        params: Hyperparameters.
        np: Number of ranks.
        seed: Seed of weights and of the order of rows; None means 0.
        stall_timeout_s: Seconds without a sign of life from a rank after which the gang is ended.

    Raises:
        BadInput: the function, the examples or the hyperparameters cannot be used; a retry would fail again.
        HopsError: a rank died or stalled.
    """
    examples = context.input("examples")
    manifest = context.store.manifest(examples.uri)
    _check_examples(context.store.local(examples), manifest, np)
    state = CheckpointState.of(context.spec, context.store)
    with context.output() as writer:
        resume_from = state.fetch(context.scratch / "resumed")
        if resume_from is not None:
            context.progress(0.0, f"resuming after epoch {resume_from.epochs}, from the checkpoint of an earlier try")
        checkpoints = writer.path / "checkpoints"

        def on_message(rank: int, message: Mapping[str, Any]) -> None:
            if message["type"] == "checkpoint":
                _publish(state, checkpoints / message["name"])
            elif message["type"] == "progress":
                context.progress(message["fraction"], message["text"], message["metrics"])
            elif message["type"] == "report":
                figures = " ".join(f"{name}={value:.4g}" for name, value in message["metrics"].items())
                print(format_record(f"step {message['step']} {figures}", metrics=message["metrics"]), flush=True)

        training = Training(
            function=train,
            examples=context.store.local(examples),
            output=writer.path,
            params=params or {},
            ranks=np,
            seed=seed or 0,
            stall_timeout_s=stall_timeout_s,
            resume_from=resume_from,
        )
        try:
            summary = train_model(training, on_message=on_message)
        except HopsError as error:
            kept = state.fetch(context.scratch / "kept")
            if kept is None:
                raise
            raise type(error)(
                f"{error}\nThe checkpoint after epoch {kept.epochs} is kept in {state.uri}; a retry resumes from it."
            ) from error
        artifact = writer.commit(
            rows=_row_counts(summary, manifest),
            metrics=_metrics(summary),
            properties={
                "features": list(FeatureSpecs.read(training.examples / "features.json").features),
                "label": manifest.properties.get("label"),
                "key": manifest.properties.get("key"),
                "time": manifest.properties.get("time"),
                "signature": SIGNATURE,
                "statistics": _input_of(manifest, "statistics", "uri"),
                "statistics_fingerprint": _input_of(manifest, "statistics", "fingerprint"),
                "schema": _input_of(manifest, "schema", "uri"),
                "window": manifest.properties.get("window"),
                "train": train,
                "ranks": np,
            },
        )
    state.clear()
    return artifact


def train_model(
    training: Training, *, on_message: Callable[[int, Mapping[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Trains on a gang of this machine's ranks and exports the model.

    Args:
        training: What is to be trained.
        on_message: Called with each report of a rank.

    Returns:
        What ``training.json`` holds.

    Raises:
        BadInput: see :func:`run`.
        HopsError: a rank died or stalled.
    """
    began = time.monotonic()
    FeatureSpecs.read(training.examples / "features.json")
    for name in ("checkpoints", "tensorboard"):
        (training.output / name).mkdir(parents=True, exist_ok=True)
    if training.resume_from is not None:
        kept = training.output / "checkpoints" / training.resume_from.path.name
        shutil.copytree(training.resume_from.path, kept, dirs_exist_ok=True)
    ranks = run_gang(
        lambda placement, channel: train_rank(training, placement, channel),
        training.ranks,
        logs=training.output / "logs",
        stall_timeout_s=training.stall_timeout_s,
        on_message=on_message,
    )
    first = ranks[0]
    summary = {
        "train": training.function,
        "params": dict(training.params),
        "seed": training.seed,
        "ranks": training.ranks,
        "threads_per_rank": training.threads,
        "hosts": sorted({rank["host"] for rank in ranks}),
        "epochs": first["history"],
        "resumed_after_epoch": training.resume_from.epochs if training.resume_from else 0,
        "examples_per_second": first["examples_per_second"],
        "seconds": {
            "total": round(time.monotonic() - began, 3),
            "export": first["export_seconds"],
            "rank_start_up": first["start_up_seconds"],
            "training": first["training_seconds"],
        },
        "rows": {split: sum(rank["rows"].get(split, 0) for rank in ranks) for split in first["rows"]},
        "rows_by_rank": [rank["rows"] for rank in ranks],
        "checksums": first["checksums"],
        "checksum": first["checksum"],
        "versions": _versions(),
    }
    (training.output / "training.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def train_rank(training: Training, placement: Placement, channel: Channel) -> dict[str, Any]:
    """What each rank does: calls the user's function, checks what it returns, and on rank 0 exports it.

    Raises:
        BadInput: the function returns no Keras model, or ranks end with different weights.
    """
    began = time.monotonic()
    channel.alive("Horovod's start")
    tf.config.threading.set_intra_op_parallelism_threads(training.threads)
    tf.config.threading.set_inter_op_parallelism_threads(training.threads)
    hvd.init()
    # The weights of rank 0 are broadcast; what must differ by rank (units that drop out) does.
    keras.utils.set_random_seed(training.seed + placement.rank)
    specs = FeatureSpecs.read(training.examples / "features.json")
    context = TrainContext(
        rank=placement.rank,
        size=placement.size,
        local_rank=placement.local_rank,
        params=training.params,
        seed=training.seed,
        feature_outputs=specs.outputs,
        label=specs.label,
        examples_dir=training.examples,
        checkpoint_dir=training.output / "checkpoints",
        tensorboard_dir=training.output / "tensorboard",
        resumed_from=training.resume_from,
        on_message=channel.send,
        on_alive=channel.alive,
    )
    start_up = time.monotonic() - began
    function = resolve(training.function)
    channel.alive(f"the beginning of {training.function}")
    model = function(context)
    training_seconds = time.monotonic() - began - start_up
    context.close()
    if not isinstance(model, keras.Model):
        raise BadInput(
            f"train function {training.function!r} returned {type(model).__module__}.{type(model).__name__}, expected "
            "a keras.Model (Keras 3)"
        )
    checksum = check_weights(model, "at the end of training")
    channel.send("alive", where="the end of training")
    hvd.shutdown()
    export_began = time.monotonic()
    if placement.rank == 0:
        _export(model, training)
    return {
        "host": placement.host,
        "rows": context.rows,
        "history": context.history,
        "checksums": context.checksums,
        "checksum": checksum,
        "examples_per_second": round(context.rows_trained / context.seconds, 1) if context.seconds else 0.0,
        "start_up_seconds": round(start_up, 3),
        "training_seconds": round(training_seconds, 3),
        "export_seconds": round(time.monotonic() - export_began, 3),
    }


def _publish(state: CheckpointState, checkpoint: Path) -> None:
    try:
        state.publish(checkpoint)
    except FileNotFoundError:
        if checkpoint.exists():
            raise
        # The ranks are faster than the store, and keep only their last few: one of those comes next.


def _check_examples(folder: Path, manifest: Manifest, ranks: int) -> None:
    """Compares the files' footers with the manifest: better now than after an epoch."""
    for split, counts in manifest.rows.items():
        rows = row_count(folder / split)
        if split == TRAIN_SPLIT and rows < ranks:
            raise BadInput(
                f"{folder}: split {split!r} holds {rows} rows, fewer than the {ranks} ranks; give it more rows, or "
                "lower np"
            )
        if rows != counts.rows_out:
            raise BadInput(
                f"{folder}: split {split!r} holds {rows} rows, but its manifest says {counts.rows_out}; files were "
                "changed or lost"
            )


def _export(model: keras.Model, training: Training) -> None:
    # TensorFlow announces names that it mends and folders that it writes: nothing to act on.
    for name in ("absl", "tensorflow"):
        logging.getLogger(name).setLevel(logging.ERROR)
    export_serving_model(
        training.output / "saved_model",
        training.examples / "transform_graph",
        model,
        training.examples / "features.json",
    )


def _row_counts(summary: Mapping[str, Any], manifest: Manifest) -> dict[str, RowCounts]:
    """Rows that the transform had written, and rows that the ranks' shards held."""
    counts = {}
    for split, rows in summary["rows"].items():
        written = manifest.rows.get(split)
        counts[split] = RowCounts(written.rows_out if written else rows, rows)
    return counts


def _metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """The last epoch's metrics, as ``train_<name>`` and ``eval_<name>``."""
    last = summary["epochs"][-1] if summary["epochs"] else {}
    metrics = {
        f"eval_{name.removeprefix('val_')}" if name.startswith("val_") else f"train_{name}": value
        for name, value in last.items()
        if name != "seconds"
    }
    return {
        **metrics,
        "examples_per_second": summary["examples_per_second"],
        "seconds": summary["seconds"]["total"],
    }


def _input_of(manifest: Manifest, role: str, attribute: str) -> str | None:
    given = manifest.inputs.get(role, ())
    return getattr(given[0], attribute) if given else None


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "horovod": version("horovod"),
        "numpy": numpy.__version__,
    }
