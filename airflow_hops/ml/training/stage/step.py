"""Trains on transformed examples, resuming from the last checkpoint, and publishes the model."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import SAVED_MODEL, ExamplesProperties, ModelProperties
from airflow_hops.core.errors import BadInput, HopsError, Preempted
from airflow_hops.core.prepare.options import TRAIN
from airflow_hops.core.steps.protocol import Phase, format_record
from airflow_hops.core.store import ArtifactWriter
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.core.training.record import RankTimes, SlowestRank
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.features.transform_graph import SIGNATURE
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.tracking import TrackedTraining
from airflow_hops.ml.tracking.training_run import OrderedCalls
from airflow_hops.ml.training.checkpoints import read_checkpoint
from airflow_hops.ml.training.gang import RankLauncher
from airflow_hops.ml.training.gang.crew import Where, rank_launcher
from airflow_hops.ml.training.preemption import EXCHANGE_S, sigterm_notice
from airflow_hops.ml.training.reader import row_count, split_names
from airflow_hops.ml.training.stage.checkpoint_state import CheckpointState
from airflow_hops.ml.training.stage.continuing import champion_of, check_inputs
from airflow_hops.ml.training.stage.program import program_name
from airflow_hops.ml.training.stage.rank_group import all_ranks, cpu_ranks
from airflow_hops.ml.training.stage.training import Training, train_model

# Tries of a training: each fetches the last intact checkpoint from the store, trains from it in its own scratch folder,
# and copies new checkpoints to the store while it trains. A kill at any point loses the steps since the last copy.
# Order at the end: commit the artifact, finish the record and the MLflow run, delete the checkpoints. A kill in between
# leaves the checkpoints of a finished training, from which a retry has no steps left to train.
# The record is begun at once, so that a refused or killed try has one; the MLflow run after the ranks have started,
# because they are forked from this process, which must not have threads.


def run(context: StepContext, *, where: Where | None = None, np: int | Sequence[int] = 2, **options: Any) -> Any:
    """Trains on the input ``examples``, from the last checkpoint of an earlier try.

    Args:
        context: The step.
        where: Place of the ranks: see :func:`airflow_hops.ml.training.gang.crew.rank_launcher`; by default the spec's
            service ``ranks``.
        np: Number of ranks that train; or the least and the most, of which as many train as there are slots.
        options: The other fields of :class:`airflow_hops.core.training.options.TrainingOptions`.

    Returns:
        The model artifact; or a shipped function's result that is not a model.

    Raises:
        BadInput: the function, the examples or the hyperparameters are unusable; a retry would fail again.
        HopsError: a rank died or stalled.
    """
    least, most = np if isinstance(np, list | tuple) else (np, np)
    values = TrainingOptions(np=most, **options)  # checked where placed
    how = {"train": program_name(values), "np": all_ranks(values)}
    how |= {"seed": values.seed, "deterministic": values.deterministic}
    tracking = TrackedTraining(context.spec, {**how, **values.params})
    tracking.begin()
    try:
        launcher = launcher_of(context, values, where)
        if least != most:
            values = replace(values, np=_ranks_for_slots(launcher, int(least), int(most)))
            context.progress(0.0, f"np is {least} to {most}: trains on {values.np}, as there are slots")
            tracking.set_params(np=values.np)
        launcher.place(all_ranks(values))  # fails early if there are too few slots
        training = prepare_training(context, values, Path(), launcher, values.np)
        state = CheckpointState.of(context.spec, context.store)
        with context.output() as writer:
            resume_from = state.fetch(context.scratch / "resumed")
            if resume_from is not None:
                context.progress(0.0, f"resuming {resume_from.position}, from the checkpoint of an earlier try")
            resumed = resume_from.path if resume_from else None
            training = replace(training, output=writer.path, resume_from=resumed)
            summary = _train(context, training, state, tracking)
            context.phases.extend(map(Phase.from_dict, summary["phases"]))
            context.used_gpus(summary["gpu_usage"], summary["seconds"]["total"])
            if training.champion is not None and "continued_from" not in summary:
                text = f"continue_from has no effect: the function has not loaded {training.champion}"
                print(format_record(text, level=logging.WARNING), flush=True)
            is_value = summary["model"] is None and not (writer.path / SAVED_MODEL).exists()
            artifact = None if is_value else publish(writer, training, summary, context.spec.inputs)
    except BaseException as error:
        tracking.fail(error, context.cost())
        raise
    tracking.finish(artifact, context.cost())
    state.clear()
    return summary["value"] if artifact is None else artifact


def prepare_training(
    context: StepContext, options: TrainingOptions, output: Path, launcher: RankLauncher, ranks: int
) -> Training:
    """Returns a training on the step's input ``examples``, if any, after comparing its files with its manifest.

    Args:
        context: The step.
        options: Options of the training.
        output: Folder to write to.
        launcher: Launcher of the ranks.
        ranks: Number of ranks that share the rows.

    Raises:
        BadInput: a split has fewer rows than ranks, or another number of rows than its manifest.
    """
    training = Training(options, None, output, launcher=launcher, code_paths=context.spec.code_paths)
    if not context.has_input("examples"):
        return replace(training, champion=champion_of(context, options, None, None))
    examples, store = context.input("examples"), context.store
    manifest = store.manifest(examples.uri)
    # Ranks read the splits of a remote store themselves.
    folder = store.local(examples, without=() if store.is_local else tuple(manifest.rows))
    splits_uri = "" if store.is_local else examples.uri
    storage_options = {} if store.is_local else store.storage_options
    # Compares the files' footers with the manifest now, instead of failing after an epoch
    root, data = splits_uri or str(folder), ExamplesProperties.of(manifest)
    there = split_names(root, storage_options=storage_options)
    splits = data.splits or tuple(manifest.rows)  # excludes the table that was split
    for split, counts in manifest.rows.items():
        if split not in splits:
            continue
        rows = row_count(f"{root}/{split}", storage_options=storage_options) if split in there else 0
        if split == TRAIN and rows < ranks:
            raise BadInput(
                f"{root}: split {split!r} holds {rows} rows, fewer than the {ranks} ranks; give it more rows, or "
                "lower np"
            )
        if rows != counts.rows_out:
            raise BadInput(
                f"{root}: split {split!r} holds {rows} rows, but its manifest says {counts.rows_out}; files were "
                "changed or lost"
            )
    return replace(
        training,
        examples=folder,
        data=data,
        manifest=manifest,
        splits_uri=splits_uri,
        storage_options=storage_options,
        champion=champion_of(context, options, manifest, folder),
    )


def launcher_of(context: StepContext, options: TrainingOptions, where: Where | None = None) -> RankLauncher:
    """Returns the launcher of a training's ranks, by default from the spec's service ``ranks``."""
    where = where or json.loads(context.spec.services.get("ranks", "null"))
    return rank_launcher(where, context, cpu_ranks=len(cpu_ranks(options)))


def publish(
    writer: ArtifactWriter,
    training: Training,
    summary: Mapping[str, Any],
    inputs: Mapping[str, tuple[Artifact, ...]],
    **properties: object,
) -> Artifact:
    """Publishes a training's model from the writer's folder, with further properties."""
    check_inputs(training.champion, summary)
    # Rows written by the transform, and rows in the ranks' shards
    counts = {}
    for split, rows in summary["rows"].items():
        written = training.manifest.rows.get(split) if training.manifest is not None else None
        counts[split] = RowCounts(written.rows_out if written else rows, rows)
    return writer.commit(
        rows=counts,
        metrics=metrics_of(summary),
        properties={**_properties(training, summary, inputs), **properties},
    )


def _ranks_for_slots(launcher: RankLauncher, least: int, most: int) -> int:
    """Returns the largest number of ranks, of ``least`` to ``most``, that the launcher has slots for.

    Raises:
        BadInput: it has slots for fewer than ``least``, or there is no such number.
        HopsError: a host cannot be reached, or slots do not come in time.
    """
    if not 1 <= least <= most:
        raise BadInput(f"np is ({least}, {most}), expected the least and the most ranks, 1 or more")
    launcher.await_slots(least, most)
    for ranks in range(most, least, -1):
        with suppress(BadInput):
            launcher.place(ranks)
            return ranks
    launcher.place(least)
    return least


def _train(
    context: StepContext, training: Training, state: CheckpointState, tracking: TrackedTraining
) -> dict[str, Any]:
    """Trains; adds the checkpoint that a retry resumes from to the message of a failure.

    Raises:
        Preempted: the training was asked to end, and has a later checkpoint than the one that it began with.
    """
    listener = Listener(context, state, training.output / "checkpoints", tracking, training.options.grace_s)
    began_at = 0 if training.resume_from is None else read_checkpoint(training.resume_from).position.step
    with sigterm_notice() as notice:
        try:
            summary = train_model(training, on_message=listener, notice=notice)
            listener.finish()
            return summary
        except HopsError as error:
            with suppress(HopsError):
                listener.finish()
            retained = state.latest()
            if retained is None:
                if isinstance(error, Preempted):
                    raise HopsError(f"{error}; the checkpoint could not be kept, so a retry starts again") from error
                raise
            kind = type(error)
            if error.retryable and (notice.is_set() or kind is Preempted):
                kind = Preempted if retained.step > began_at else HopsError
            raise kind(
                f"{error}\nThe checkpoint {retained} is kept in {state.uri}; a retry resumes from it."
            ) from error


def _properties(
    training: Training, summary: Mapping[str, Any], inputs: Mapping[str, tuple[Artifact, ...]]
) -> dict[str, object]:
    """Returns the model's properties for later stages."""
    model = summary["model"] or {}  # None if a script wrote its own SavedModel
    own = {
        "signature": SIGNATURE,
        "train": program_name(training.options),
        "ranks": all_ranks(training.options),
        "synchronized": summary["synchronized"],
        **{name: model[name] for name in ("format", "framework", "library_versions") if name in model},
        **{name: summary[name] for name in ("continued_from",) if name in summary},
    }
    manifest = training.manifest
    if training.examples is None or manifest is None:
        return own
    data, taken = training.data, model.get("inputs")
    if taken is None or (training.examples / "features.json").exists():
        specs = FeatureSpecs.read(training.examples / "features.json")
        taken = list(specs.inputs) if taken is None else taken
        features, target = [name for name in specs.features if name in taken], specs.target
    else:
        features, target = taken, data.target
    made_with = {**inputs, **manifest.inputs}  # raw examples are older than their statistics
    return ModelProperties.made_of(
        data, target, made_with, features=tuple(features), inputs=tuple(taken), **own
    ).to_dict()


def metrics_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of the epoch whose weights the model has, as ``train_<name>`` and ``eval_<name>``.

    It is the last one if that epoch is not known. NaN and infinity, which are not JSON, are left out.
    """
    epochs = summary["epochs"]
    epoch = epochs[(summary.get("epoch") or len(epochs)) - 1] if epochs else {}
    metrics = {
        f"eval_{name.removeprefix('val_')}" if name.startswith("val_") else f"train_{name}": value
        for name, value in epoch.items()
        if name != "seconds" and math.isfinite(value)
    }
    gpus = [gpu for rank in summary["gpu_usage"] for gpu in rank if gpu["peak_memory_bytes"] is not None]
    if gpus:
        metrics["gpu_peak_memory_gib"] = round(max(gpu["peak_memory_bytes"] for gpu in gpus) / 2**30, 3)
        metrics["gpu_utilization"] = round(sum(gpu["utilization"] for gpu in gpus) / len(gpus), 4)
    speed = {name: summary[name] for name in ("examples_per_second", "scaling_efficiency") if summary[name] is not None}
    return {
        **metrics,
        **speed,
        "seconds": summary["seconds"]["total"],
    }


_STRAGGLER = 1.5
"""Multiple of the median rank's own time from which the slowest rank is a warning."""


def describe_slowest(slowest: SlowestRank) -> str:
    """Describes the slowest rank of an epoch."""
    text = (
        f"epoch {slowest.epoch}: slowest is rank {slowest.rank} ({slowest.computing:.2f} s computing, "
        f"{slowest.rows:.2f} s waiting for rows, {slowest.exchange:.2f} s exchanging)"
    )
    if slowest.times < _STRAGGLER:
        return text
    return f"{text}, {slowest.times:.1f} times as long as the others without the exchange, and they wait for it"


class Listener:
    """Handles the messages of a gang's ranks.

    A thread copies checkpoints to the store, so that the watching process does not wait. The next call raises its
    errors.

    Args:
        context: The step.
        state: Storage of checkpoints across tries.
        checkpoints: Folder of rank 0's checkpoints.
        tracking: The training's record and MLflow run.
        grace_s: Seconds from SIGTERM to SIGKILL.
    """

    def __init__(
        self,
        context: StepContext,
        state: CheckpointState,
        checkpoints: Path,
        tracking: TrackedTraining,
        grace_s: float,
    ) -> None:
        self._context, self._state, self._checkpoints, self._tracking = context, state, checkpoints, tracking
        self._grace_s = grace_s
        self._checkpoint_calls = OrderedCalls("checkpoints")
        self._hosts: dict[int, str] = {}

    def __call__(self, rank: int, message: Mapping[str, Any]) -> None:
        """Handles a message of a rank."""
        self._checkpoint_calls.raise_error()
        kind = message["type"]
        if kind == "started":
            self._hosts[rank] = message["host"]
            if rank == 0:
                self._tracking.connect()
        elif kind == "checkpoint":
            name, seconds = message["name"], message["seconds"]
            self._checkpoint_calls.do(partial(self._publish, self._checkpoints / name, seconds))
        elif kind == "progress":
            self._context.progress(message["fraction"], message["text"], message["metrics"])
            self._tracking.log_metrics(message["metrics"], message["epoch"])
        elif kind == "slowest":
            fields = {name: value for name, value in message.items() if name != "type"}
            hosts = [self._hosts.get(number, "") for number in range(len(fields["ranks"]))]
            ranks = [RankTimes(host, **each) for host, each in zip(hosts, fields.pop("ranks"), strict=True)]
            slowest = SlowestRank(**fields, ranks=tuple(ranks))
            level = logging.WARNING if slowest.times >= _STRAGGLER else logging.INFO
            print(format_record(describe_slowest(slowest), level=level), flush=True)
            self._tracking.log_slowest(slowest)
        elif kind == "shares":
            print(format_record(message["text"], level=logging.INFO), flush=True)
        elif kind == "report":
            figures = " ".join(f"{name}={value:.4g}" for name, value in message["metrics"].items())
            print(format_record(f"step {message['step']} {figures}", metrics=message["metrics"]), flush=True)
            self._tracking.log_metrics(message["metrics"], message["step"])

    def finish(self) -> None:
        """Waits until all checkpoints are copied.

        Raises:
            HopsError: a checkpoint could not be written.
        """
        self._checkpoint_calls.finish()
        self._checkpoint_calls.raise_error()

    def _publish(self, checkpoint: Path, seconds: float) -> None:
        began = time.monotonic()
        try:
            self._state.publish(checkpoint)
        except FileNotFoundError:
            if checkpoint.exists():
                raise
            # The ranks have already deleted this checkpoint; a newer one follows.
            return
        copied = time.monotonic() - began
        needed = EXCHANGE_S + seconds + copied
        if needed > self._grace_s:
            text = (
                f"a checkpoint takes {needed:.1f} s ({EXCHANGE_S} s until ranks agree, {seconds:.1f} s to write, "
                f"{copied:.1f} s to copy to the store), more than the {self._grace_s:g} s (grace_s) from SIGTERM to "
                "SIGKILL: a training that is asked to end would lose the steps since its last checkpoint. Set "
                "checkpoint_every_steps, or give it more time and say so in grace_s"
            )
            print(format_record(text, level=logging.WARNING), flush=True)
            self._grace_s = math.inf  # says it once
