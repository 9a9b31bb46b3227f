"""What each rank of a training does: calls the user's function, checks what it returns, and on rank 0 exports it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from airflow_hops.artifacts import HopsError
from airflow_hops.hops.checkpoints import read_checkpoint
from airflow_hops.hops.context import TrainContext, made_current
from airflow_hops.hops.elastic import Elasticity
from airflow_hops.hops.keras import check_weights
from airflow_hops.hops.keras.legacy import use_tf_keras
from airflow_hops.hops.rank_state import seed_rank
from airflow_hops.runtime.feature_specs import FeatureSpecs
from airflow_hops.runtime.gang import Channel, Placement
from airflow_hops.runtime.gang.meeting import Membership
from airflow_hops.runtime.train.outcome import OUTPUT_VARIABLE, check_outcome, export, is_model
from airflow_hops.runtime.train.program import Program
from airflow_hops.runtime.train.strategies import HOROVOD, PARAMETER_SERVER, Member, Roles


def train_rank(
    placement: Placement,
    channel: Channel,
    *,
    folders: Mapping[str, Path],
    program: Mapping[str, Any],
    params: Mapping[str, Any],
    seed: int,
    splits_uri: str = "",
    storage_options: Mapping[str, Any] | None = None,
    deterministic: bool = False,
    checkpoint_every_steps: int = 0,
    guard_every_steps: int | None = None,
    strategy: str = HOROVOD,
    parameter_servers: int = 0,
    timeline: bool = False,
) -> dict[str, Any] | None:
    """The work of a rank.

    Args:
        placement: Where the rank stands.
        channel: To the process that watches.
        folders: ``examples``, the transformed examples, if there are any; ``output``, which rank 0 writes to;
            ``resumed``, the checkpoint to begin from, if there is one.
        program: The user's code: :meth:`airflow_hops.runtime.train.program.Program.to_dict`.
        params: Hyperparameters.
        seed: Seed of weights and of the order of rows.
        splits_uri: Where the splits of the examples lie, if not in their folder.
        storage_options: For fsspec, of the store where they lie.
        deterministic: Whether the same training gives the same bits: one thread a rank, operations to match.
        checkpoint_every_steps: Steps between checkpoints within an epoch; 0 for none.
        guard_every_steps: Steps between two comparisons of the ranks' weights; 0 for none, None for the default.
        strategy: How the ranks work together: one of :data:`airflow_hops.runtime.train.strategies.STRATEGIES`.
        parameter_servers: How many of the ranks hold variables, and do not train.
        timeline: Whether Horovod writes its timeline, ``timeline.json`` in the output.

    Returns:
        What goes into ``training.json``; ``value`` is what a shipped function returned that is no model. None of a rank
        that only serves the others.

    Raises:
        BadInput: no model came out, or ranks end with different weights.
    """
    began = time.monotonic()
    examples = folders.get("examples")
    code = Program.from_dict(program)
    channel.alive("the start of its collectives")
    os.environ[OUTPUT_VARIABLE] = str(folders["output"])
    if timeline:
        os.environ["HOROVOD_TIMELINE"] = str(folders["output"] / "timeline.json")
    if strategy != HOROVOD or os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        use_tf_keras()
    membership = Membership.of_rank(placement, channel)
    if membership is not None:
        membership.begin()
        placement = membership.placement
    elif strategy == HOROVOD:
        hvd.init()
    threads = 1 if deterministic else max(1, len(os.sched_getaffinity(0)) // placement.local_size)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    member = None
    if strategy != HOROVOD:
        roles = Roles(strategy, placement.size, parameter_servers)
        member = Member(roles, placement, channel)
        if not member.runs_user_code:
            member.serve()
            return None
    seed_rank(seed, placement.rank)
    specs = None if examples is None else FeatureSpecs.read(examples / "features.json")
    context = TrainContext(
        rank=placement.rank,
        size=1 if strategy == PARAMETER_SERVER else placement.size,  # its chief reads all rows
        local_rank=placement.local_rank,
        params=params,
        seed=seed,
        feature_outputs=specs.outputs if specs else {},
        label=specs.label if specs else "",
        examples_dir=examples,
        splits_uri=splits_uri,
        storage_options=storage_options or {},
        checkpoint_dir=folders["output"] / "checkpoints",
        tensorboard_dir=folders["output"] / "tensorboard",
        resumed_from=read_checkpoint(folders["resumed"]) if "resumed" in folders else None,
        checkpoint_every_steps=checkpoint_every_steps,
        guard_every_steps=guard_every_steps,
        on_message=channel.send,
        on_alive=channel.alive,
        bring_back=channel.bring_back,
        strategy=member.strategy if member else None,
    )
    channel.send("started")
    if membership is not None:
        context.elasticity = Elasticity(membership, context)
    start_up = time.monotonic() - began
    channel.alive(f"the beginning of {code.name}")
    returned = _call(code, context)
    training_seconds = time.monotonic() - began - start_up
    model = returned if is_model(returned) else None
    if model is None:
        check_outcome(code, returned, folders["output"], context.rank)
    checksum = None if model is None else _check(model, context, member)
    channel.send("alive", where="the end of training")
    if hvd.is_initialized():
        hvd.shutdown()
    export_began = time.monotonic()
    if model is not None and context.rank == 0:
        export(model, examples, folders["output"])
    elif model is not None and member is not None:
        # All workers save a mirrored model together; what this one writes is not kept.
        with tempfile.TemporaryDirectory(prefix="hops-export-") as folder:
            export(model, examples, Path(folder))
    if member is not None:
        member.finish()
    return {
        "host": placement.host,
        "threads": threads,
        "rows": context.rows,
        "history": context.history,
        "resumed_after_epoch": context.initial_epoch,
        "resumed_at_step": context.resumed_from.position.step if context.resumed_from else 0,
        "checksum": checksum,
        "value": None if model is not None or code.script is not None else returned,
        "guard": {
            "checks": sum(guard.checks for guard in context.guards),
            "checksums": [checksum for guard in context.guards for checksum in guard.checksums],
            "rows": [rows for guard in context.guards for rows in guard.rows],
        },
        "examples_per_second": round(context.rows_trained / context.seconds, 1) if context.seconds else 0.0,
        "scaling_efficiency": _scaling_efficiency(context),
        "start_up_seconds": round(start_up, 3),
        "training_seconds": round(training_seconds, 3),
        "export_seconds": round(time.monotonic() - export_began, 3),
    }


def _call(code: Program, context: TrainContext) -> Any:
    """Runs the user's code, and waits for its last checkpoint however it ends."""
    try:
        with made_current(context), tempfile.TemporaryDirectory(prefix="hops-code-") as folder:
            returned = code.run(context, Path(folder))
    except Exception as error:
        with contextlib.suppress(HopsError):
            context.close()
        failure = context.reading_failure
        if failure is not None and failure is not error:
            raise failure from error
        raise
    context.close()
    return returned


def _check(model: Any, context: TrainContext, member: Member | None) -> str:
    """Compares the ranks' weights at the end, with those that are left of them."""
    if member is not None:
        return member.check_weights(model)
    if context.elasticity is None:
        return check_weights(model, "at the end of training")
    return context.elasticity.finish(lambda: check_weights(model, "at the end of training"))


def _scaling_efficiency(context: TrainContext) -> float | None:
    """Share of the training's time that ranks did not spend on exchanging gradients and waiting for each other."""
    if not context.seconds:
        return None
    return round(max(0.0, 1 - context.exchange_seconds / context.seconds), 4)
