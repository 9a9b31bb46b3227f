"""Describes a training, and runs it on a gang.

Libraries and the program of ranks are imported before ranks are forked, so that these have them already.
"""

from __future__ import annotations

import contextlib
import json
import platform
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Manifest
from airflow_hops.core.artifacts.properties import ExamplesProperties
from airflow_hops.core.errors import Preempted
from airflow_hops.core.redaction import masked
from airflow_hops.core.training.options import HOROVOD, TrainingOptions
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.models.champion import Champion
from airflow_hops.ml.training.gang import LocalRanks, RankJob, RankLauncher, run_gang
from airflow_hops.ml.training.gang.supervisor import OnMessage
from airflow_hops.ml.training.stage.program import program_name
from airflow_hops.ml.training.stage.rank_group import all_ranks, cpu_ranks, trains_keras
from airflow_hops.ml.training.stage.rank_program import has_tensorflow


@dataclass(frozen=True)
class Training:
    """Description of a training.

    Attributes:
        options: Options of the training.
        examples: Folder of the transformed examples: splits, ``transform_graph/`` and ``features.json``; in a training
            of one process, raw ones with only splits are allowed; None for a program with its own data.
        output: Folder to write to: ``saved_model/``, ``checkpoints/``, ``tensorboard/``, ``logs/``, ``training.json``.
        data: Properties of the examples.
        manifest: Manifest of the examples' artifact, if they are one.
        splits_uri: URI of the examples' splits, which ranks read themselves, if they are not in their folder.
        storage_options: fsspec options of their store.
        resume_from: Folder of the checkpoint to start from, or None.
        launcher: Launcher of the ranks.
        code_paths: Folders of user code, for ranks on other hosts.
        champion: The model to continue from, or None.
    """

    options: TrainingOptions
    examples: Path | None
    output: Path
    data: ExamplesProperties = field(default_factory=ExamplesProperties)
    manifest: Manifest | None = None
    splits_uri: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    resume_from: Path | None = None
    launcher: RankLauncher = field(default_factory=LocalRanks)
    code_paths: tuple[str, ...] = ()
    champion: Champion | None = None


def train_model(
    training: Training, *, on_message: OnMessage | None = None, notice: threading.Event | None = None
) -> dict[str, object]:
    """Trains on a gang of ranks and exports the model; returns the content of ``training.json``.

    Args:
        training: Description of the training.
        on_message: Called with each report of a rank.
        notice: The notice to this process, which is passed on to the ranks.

    Raises:
        BadInput: see :func:`airflow_hops.ml.training.stage.run`.
        Preempted: all ranks have ended after one step, and rank 0 has written a checkpoint of it.
        HopsError: a rank died or stalled.
    """
    began = time.monotonic()
    if training.examples is not None and trains_keras(training.options):
        FeatureSpecs.read(training.examples / "features.json")
    options = training.options
    ranks = run_ranks(training, "airflow_hops.ml.training.stage.rank_program:train_rank", on_message, notice)
    first, ranks = ranks[0], [rank for rank in ranks if rank is not None]
    if preempted := [rank["preempted"] for rank in ranks if "preempted" in rank]:
        raise Preempted(f"the training was asked to end (SIGTERM), and all ranks have ended {preempted[0]}")
    summary = {
        "train": program_name(options),
        "params": masked(options.params),
        "seed": options.seed,
        "deterministic": options.deterministic,
        "strategy": options.strategy,
        "ranks": all_ranks(options),
        "threads_per_rank": first["threads"],
        "gpu_usage": [rank["gpus"] for rank in ranks],
        "hosts": sorted({rank["host"] for rank in ranks}),
        "epochs": first["history"],
        **({"epoch": first["epoch"]} if first["epoch"] else {}),
        "resumed_after_epoch": first["resumed_after_epoch"],
        "resumed_at_step": first["resumed_at_step"],
        "examples_per_second": first["examples_per_second"],
        "scaling_efficiency": first["scaling_efficiency"],
        "slowest": first["slowest"],
        "phases": [rank["phase"] for rank in ranks],
        **({"shares": first["shares"]} if first["shares"] else {}),
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
        "model": first["model"],
        # A script that only writes a SavedModel gives no checksum to compare.
        "synchronized": first["checksum"] is not None and len({rank["checksum"] for rank in ranks}) == 1,
        "value": first["value"],
        **({"continued_from": _reference(training.champion)} if training.champion and first["is_continued"] else {}),
        "versions": _versions(),
    }
    (training.output / "training.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def run_ranks(
    training: Training, entry: str, on_message: OnMessage | None = None, notice: threading.Event | None = None
) -> list[Any]:
    """Runs a training's ranks on the function ``entry`` (``module:function``); returns their results.

    Raises:
        BadInput: see :func:`airflow_hops.ml.training.stage.run`.
        HopsError: a rank died or stalled.
    """
    if training.options.strategy == HOROVOD:
        from airflow_hops.ml.training.collectives import check_horovod

        check_horovod()
    if has_tensorflow(training.options):
        import keras  # noqa: F401  # for the ranks
        import tensorflow  # noqa: F401

        import airflow_hops.ml.training.collectives  # noqa: F401
    champion = training.champion
    for name in ("checkpoints", "tensorboard"):
        (training.output / name).mkdir(parents=True, exist_ok=True)
    return run_gang(
        RankJob(
            entry,
            {
                "options": training.options.to_dict(),
                "examples": training.data.to_dict(),
                "splits_uri": training.splits_uri,
                "storage_options": dict(training.storage_options),
                "champion": None if champion is None else {n: v for n, v in vars(champion).items() if n != "path"},
            },
            code_paths=training.code_paths,
            inputs={
                **({} if training.examples is None else {"examples": training.examples}),
                **({} if training.resume_from is None else {"resumed": training.resume_from}),
                **({} if champion is None or champion.path is None else {"champion": champion.path}),
            },
            output=training.output,
            cpu_ranks=cpu_ranks(training.options),
        ),
        all_ranks(training.options),
        logs=training.output / "logs",
        launcher=training.launcher,
        env=training.options.env,
        stall_timeout_s=training.options.stall_timeout_s,
        on_message=on_message,
        notice=notice,
    )


def _reference(champion: Champion) -> dict[str, object]:
    return {name: getattr(champion, name) for name in ("model_name", "version", "fingerprint")}


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("tensorflow", "keras", "horovod", "torch", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
