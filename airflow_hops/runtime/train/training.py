"""A training: what is to be trained, and how a gang does it.

Importing this module imports TensorFlow and Horovod, so that the ranks, which are forked, have them already.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import horovod.tensorflow  # noqa: F401  # for the ranks
import keras
import numpy
import tensorflow as tf

from airflow_hops.runtime.feature_specs import FeatureSpecs
from airflow_hops.runtime.gang import LocalRanks, RankJob, RankLauncher, run_gang
from airflow_hops.runtime.gang.elastic import Elastic, note_resize, run_elastic_gang
from airflow_hops.runtime.train.program import Program
from airflow_hops.runtime.train.strategies import HOROVOD


@dataclass(frozen=True)
class Training:
    """What is to be trained.

    Attributes:
        program: The user's code, which runs on every rank.
        examples: Folder of the transformed examples: splits, ``transform_graph/`` and ``features.json``; None for a
            program that finds its data itself.
        output: Folder to write to: ``saved_model/``, ``checkpoints/``, ``tensorboard/``, ``logs/``, ``training.json``.
        splits_uri: Where the splits of the examples lie, if not in their folder: ranks read them by themselves.
        storage_options: For fsspec, of the store where they lie.
        params: Hyperparameters.
        ranks: Number of ranks; where they are elastic, with how many they begin.
        elastic: How far the gang may shrink and grow; None: all ranks or none.
        seed: Seed of weights and of the order of rows.
        deterministic: Whether the same training gives the same bits.
        checkpoint_every_steps: Steps between checkpoints within an epoch; 0 for none.
        guard_every_steps: Steps between two comparisons of the ranks' weights; 0 for none, None for the default.
        stall_timeout_s: Seconds without a sign of life from a rank after which the gang is ended.
        resume_from: Folder of the checkpoint to begin from, or None.
        launcher: Where the ranks run.
        code_paths: Folders of user code, for ranks on other hosts.
        environment: Variables for all ranks.
        strategy: How the ranks work together: one of :data:`airflow_hops.runtime.train.strategies.STRATEGIES`.
        parameter_servers: How many of the ranks hold variables, and do not train.
        timeline: Whether Horovod writes its timeline.
    """

    program: Program
    examples: Path | None
    output: Path
    splits_uri: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    ranks: int = 2
    elastic: Elastic | None = None
    seed: int = 0
    deterministic: bool = False
    checkpoint_every_steps: int = 0
    guard_every_steps: int | None = None
    stall_timeout_s: float = 300.0
    resume_from: Path | None = None
    launcher: RankLauncher = field(default_factory=LocalRanks)
    code_paths: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    strategy: str = HOROVOD
    parameter_servers: int = 0
    timeline: bool = False


def train_model(
    training: Training, *, on_message: Callable[[int, Mapping[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Trains on a gang of ranks and exports the model.

    Args:
        training: What is to be trained.
        on_message: Called with each report of a rank.

    Returns:
        What ``training.json`` holds.

    Raises:
        BadInput: see :func:`airflow_hops.runtime.train.run`.
        HopsError: a rank died or stalled.
    """
    began = time.monotonic()
    if training.examples is not None:
        FeatureSpecs.read(training.examples / "features.json")
    for name in ("checkpoints", "tensorboard"):
        (training.output / name).mkdir(parents=True, exist_ok=True)
    resizes: list[dict[str, Any]] = []

    def hear(rank: int, message: Mapping[str, Any]) -> None:
        note_resize(resizes, message)
        if on_message is not None:
            on_message(rank, message)

    run = run_gang if training.elastic is None else partial(run_elastic_gang, elastic=training.elastic)
    ranks = run(
        RankJob(
            "airflow_hops.runtime.train.rank_program:train_rank",
            {
                "program": training.program.to_dict(),
                "params": dict(training.params),
                "seed": training.seed,
                "splits_uri": training.splits_uri,
                "storage_options": dict(training.storage_options),
                "deterministic": training.deterministic,
                "checkpoint_every_steps": training.checkpoint_every_steps,
                "guard_every_steps": training.guard_every_steps,
                "strategy": training.strategy,
                "parameter_servers": training.parameter_servers,
                "timeline": training.timeline,
            },
            code_paths=training.code_paths,
            inputs={
                **({} if training.examples is None else {"examples": training.examples}),
                **({} if training.resume_from is None else {"resumed": training.resume_from}),
            },
            output=training.output,
        ),
        training.ranks,
        logs=training.output / "logs",
        launcher=training.launcher,
        environment=training.environment,
        stall_timeout_s=training.stall_timeout_s,
        on_message=hear,
    )
    first, ranks = ranks[0], [rank for rank in ranks if rank is not None]
    summary = {
        "train": training.program.name,
        "params": dict(training.params),
        "seed": training.seed,
        "deterministic": training.deterministic,
        "strategy": training.strategy,
        "ranks": training.ranks,
        "ranks_at_end": len(ranks),
        "resizes": resizes,
        "threads_per_rank": first["threads"],
        "hosts": sorted({rank["host"] for rank in ranks}),
        "epochs": first["history"],
        "resumed_after_epoch": first["resumed_after_epoch"],
        "resumed_at_step": first["resumed_at_step"],
        "examples_per_second": first["examples_per_second"],
        "scaling_efficiency": first["scaling_efficiency"],
        "seconds": {
            "total": round(time.monotonic() - began, 3),
            "export": first["export_seconds"],
            "rank_start_up": first["start_up_seconds"],
            "training": first["training_seconds"],
        },
        "rows": {split: sum(rank["rows"].get(split, 0) for rank in ranks) for split in first["rows"]},
        "rows_by_rank": [rank["rows"] for rank in ranks],
        "guard": first["guard"],
        "checksum": first["checksum"],
        # A script that leaves no model but a SavedModel has shown nothing of its ranks.
        "synchronized": first["checksum"] is not None and len({rank["checksum"] for rank in ranks}) == 1,
        "value": first["value"],
        "versions": _versions(),
    }
    (training.output / "training.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "horovod": version("horovod"),
        "numpy": numpy.__version__,
    }
