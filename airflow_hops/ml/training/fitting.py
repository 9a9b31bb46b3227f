"""``model.fit`` from a checkpoint on, as :meth:`airflow_hops.ml.training.context.TrainContext.fit` runs it."""

from __future__ import annotations

import contextlib
import logging
import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from tensorflow.python.framework import random_seed

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.features.serving_export import check_exportable
from airflow_hops.ml.training.callbacks import FitCallbacks, RecordCallback, guarding_callbacks, make_guard
from airflow_hops.ml.training.checkpoints import Position
from airflow_hops.ml.training.keras import exchange_seconds
from airflow_hops.ml.training.keras.weights import short_checksum

if TYPE_CHECKING:
    from airflow_hops.ml.training.row_shares import RowShares
    from airflow_hops.ml.training.session import Session

_EVALUATION_ROWS = 8192
_EVALUATION_BYTES = 64 << 20

log = logging.getLogger(__name__)


def fit_model(
    session: Session,
    model: Any,
    *,
    epochs: int,
    batch_size: int,
    split: str,
    validation_split: str | None,
    callbacks: Sequence[object],
    checkpoint_every_steps: int | None,
    shares: type[RowShares] | None,
) -> list[dict[str, float]]:
    """Trains a model; see :meth:`airflow_hops.ml.training.context.TrainContext.fit` for the arguments.

    Keras's ``fit`` takes one dataset, and one number of steps, for all epochs. The rest of a resumed epoch is therefore
    a separate ``fit``, as is every epoch with ``shares``; the callbacks see all as one training.
    """
    _check_shares(session, shares)
    if any(isinstance(each, keras.callbacks.BackupAndRestore) for each in callbacks):
        raise BadInput(
            "callbacks has a BackupAndRestore, expected none: context.fit writes checkpoints and resumes from them; "
            "leave it out, and set checkpoint_every_steps for its save_freq"
        )
    number, session.fits, state = session.fits, session.fits + 1, session.state
    if number < state.position.fit:
        log.info("call %d of context.fit had finished before the checkpoint: it is skipped", number + 1)
        return state.history
    session.join()
    data, rank, outputs, target = session.data, session.rank, session.source.outputs, session.source.target
    columns = input_names(model, outputs)
    steps, balancer = data.steps(split, batch_size), None
    if shares is not None and rank.size > 1:
        balancer = shares(session, model, split, batch_size, columns)
    reader = balancer.reader if balancer else data.reader(split, columns)
    examples = partial(data.dataset, split, batch_size, columns=columns, reader=reader)
    whole = examples(shuffle=True)
    validation = None
    if validation_split is not None and data.suffice(validation_split):
        row_bytes = 4 * sum(math.prod(output.shape) for output in outputs.values())
        # Large batches for speed, except for images.
        rows = max(1, rank.size, min(_EVALUATION_ROWS, _EVALUATION_BYTES // max(row_bytes, 1)))
        validation = data.dataset(validation_split, rows, columns=columns)
    state.track(model, callbacks=callbacks)
    is_resumed = state.resumed_from is not None and state.resumed_from.position == state.position
    _prepare(session, model, examples(), is_resumed)
    if number == 0 and rank.number == 0 and rank.group is None and target is not None:
        check_exportable(model, outputs, target)
    if is_resumed:
        state.restore(model)
    start = state.position
    every_steps = session.options.checkpoint_every_steps if checkpoint_every_steps is None else checkpoint_every_steps
    guard = make_guard(session, reader)
    record = RecordCallback(
        session,
        epochs,
        rows=partial(data.count_rows, reader, batch_size),
        every_steps=every_steps,
        waited_s=reader.waited_s,
        shares=balancer,
    )
    together = FitCallbacks(
        session,
        [*guarding_callbacks(session, guard, balancer), *callbacks, record],
        add_history=True,
        model=model,
        epochs=epochs,
        steps=steps,
    )
    together.begin()
    with _finalized_once(model), _resumable_random_numbers(), balancer or contextlib.nullcontext():
        for first_epoch, last_epoch, first_batch in _parts(start, epochs, separate=balancer is not None):
            session.first_batch = first_batch
            if balancer and balancer.begin(first_batch):
                whole = examples(shuffle=True)
            model.fit(
                examples(shuffle=True, first_step=first_batch) if first_batch else whole,
                validation_data=validation,
                initial_epoch=first_epoch,
                epochs=last_epoch,
                steps_per_epoch=steps - first_batch if first_batch else None,
                shuffle=False,
                verbose=0,
                callbacks=together,
            )
            if model.stop_training:
                break
    session.preemption.is_heeded = False
    together.end()
    if len(state.weights) == len(state.history):
        checksum = short_checksum(model.trainable_weights)
        state.epoch = max((epoch for epoch, each in enumerate(state.weights, 1) if each == checksum), default=0)
    session.exchange_seconds += exchange_seconds(model.optimizer)
    state.position = Position(step=state.position.step, fit=number + 1, shares=state.position.shares)
    return state.history


def _check_shares(session: Session, shares: type[RowShares] | None) -> None:
    """Raises BadInput if a resumed epoch has unequal shares, and the call would divide the rows equally."""
    position = session.state.position
    is_unequal = bool(position.batch and position.shares) and position.shares[-1][0] == position.fit == session.fits
    if shares is None and is_unequal:
        raise BadInput(
            f"shares is None, but the checkpoint {position} is of an epoch with unequal shares of the rows; give fit "
            "the same shares, or delete the checkpoint to start again"
        )


@contextlib.contextmanager
def _resumable_random_numbers() -> Iterator[None]:
    """Refuses a random operation whose counter is in a graph's kernel, when the graph is made."""
    original = random_seed.get_seed

    def get_seed(op_seed: int | None) -> Any:
        if tf.executing_eagerly():
            return original(op_seed)
        frames = [
            frame for frame in traceback.extract_stack()[:-1] if "/site-packages/tensorflow/" not in frame.filename
        ]
        raise BadInput(
            f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line!r} draws random numbers whose counter is in "
            "TensorFlow's kernel, where no checkpoint can read it; expected numbers that a resumed training can draw "
            "again: those of keras.random or tf.random.Generator, or of Keras's layers"
        )

    random_seed.get_seed = get_seed
    try:
        yield
    finally:
        random_seed.get_seed = original


@contextlib.contextmanager
def _finalized_once(model: keras.Model) -> Iterator[None]:
    """Applies an optimizer's final values, the moving averages of ``use_ema``, at the end of the block.

    Keras applies them at the end of each ``fit``: the epochs after the rest of a resumed one would start from averages.
    """
    optimizer = model.optimizer
    object.__setattr__(optimizer, "finalize_variable_values", lambda variables: None)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "finalize_variable_values")
    optimizer.finalize_variable_values(model.trainable_weights)


def _parts(start: Position, epochs: int, *, separate: bool) -> list[tuple[int, int, int]]:
    """Returns first epoch, last epoch (exclusive) and first batch of each ``fit`` of the remaining training."""
    if start.stopped:
        return []
    if separate:
        return [(epoch, epoch + 1, start.batch if epoch == start.epoch else 0) for epoch in range(start.epoch, epochs)]
    if not start.batch:
        return [(start.epoch, epochs, 0)]
    return [(start.epoch, start.epoch + 1, start.batch), (start.epoch + 1, epochs, 0)]


def input_names(model: keras.Model, outputs: Mapping[str, object]) -> list[str] | None:
    """Returns the transform's outputs that a Keras model takes, by the names of its inputs; None for all of them.

    A model that does not declare its inputs, such as a subclassed one, takes all.

    Raises:
        BadInput: the model's inputs are a dict with a name that is not among the outputs.
    """
    try:
        inputs = model.input
    except (AttributeError, ValueError):
        return None
    if isinstance(inputs, dict):
        unknown = [name for name in inputs if name not in outputs]
        if unknown:
            raise BadInput(
                f"the model's input {', '.join(map(repr, unknown))} is not among the transform's outputs: "
                f"{', '.join(outputs)}"
            )
        return list(inputs)
    names = [each.name for each in (inputs if isinstance(inputs, list | tuple) else [inputs])]
    return names if all(name in outputs for name in names) else None


def _prepare(session: Session, model: keras.Model, examples: Any, is_resumed: bool) -> None:
    """Builds the state that Keras builds at the first batch, and disables ``jit_compile`` on several ranks."""
    if session.rank.size > 1 and model.jit_compile:
        # Horovod 0.28 (horovod/horovod#2590): XLA, which Keras enables by default if it can, has no all-reduce.
        log.info("jit_compile is turned off: XLA has no Horovod all-reduce")
        model.jit_compile = False
    if model.built and not is_resumed:
        return
    features, *labels = next(iter(examples))
    if not model.built:
        model(features)
    if not is_resumed:
        return
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    # Creates the variables of metrics and of further optimizers; the checkpoint restores these and all others.
    if session.rank.group is not None:
        model.test_on_batch(features, *labels)
    elif model.run_eagerly:
        model.train_step((features, *labels))
    else:  # without running it
        tf.function(model.train_step).get_concrete_function((features, *labels))
