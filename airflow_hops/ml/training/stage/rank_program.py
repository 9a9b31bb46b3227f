"""Program of a rank: calls the user's function, checks its result, and exports it on rank 0."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.artifacts.properties import SAVED_MODEL, ExamplesProperties
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.prepare.options import TRAIN
from airflow_hops.core.processes.cpu_time import while_busy
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.steps.protocol import Phase, check_json
from airflow_hops.core.training.options import HOROVOD, SINGLE, TrainingOptions
from airflow_hops.core.versions import hide_triton
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.features.serving_export import output_specs, outputs_taken
from airflow_hops.ml.models.champion import Champion, keep_trained
from airflow_hops.ml.models.frameworks import framework_of, frameworks
from airflow_hops.ml.training.checkpoints import read_checkpoint
from airflow_hops.ml.training.context import TrainContext, made_current
from airflow_hops.ml.training.devices import GpuMeter, get_gpus
from airflow_hops.ml.training.gang import Channel, Placement
from airflow_hops.ml.training.preemption import PreemptedRank
from airflow_hops.ml.training.rank import Rank
from airflow_hops.ml.training.session import Session
from airflow_hops.ml.training.shares import ExamplesSource
from airflow_hops.ml.training.stage.estimators import export_estimator, folder_checksum
from airflow_hops.ml.training.stage.program import MODEL_NAME, program_name, run_program
from airflow_hops.ml.training.stage.rank_group import group_of, trains_keras
from airflow_hops.ml.training.tables import raw_specs

OUTPUT_VARIABLE = "HOPS_OUTPUT"
"""Environment variable with rank 0's output folder."""


def is_model(value: object) -> bool:
    """Returns whether a value is a Keras model, of Keras 3 or tf_keras."""
    loaded = [sys.modules[name] for name in ("keras", "tf_keras") if name in sys.modules]
    return any(isinstance(value, each.Model) for each in loaded)


def check_outcome(options: TrainingOptions, returned: object, output: Path, rank: int) -> None:
    """Checks a program's result that is not a model.

    Raises:
        BadInput: the program wrote no SavedModel, and its result is not a value that a shipped function may return.
    """
    name = program_name(options)
    if options.shipped is not None or (options.any_value and options.script is None):
        check_json(returned, f"what {name} returned")
        return
    kind = f"{type(returned).__module__}.{type(returned).__name__}"
    if options.script is None:
        known = "" if trains_keras(options) else ", ".join(frameworks())
        others = f", or a model (or a dict of models by label) of a registered framework: {known}" if known else ""
        raise BadInput(f"train function {name!r} returned {kind}, expected a keras.Model{others}")
    if rank == 0 and not (output / SAVED_MODEL / "saved_model.pb").is_file():
        raise BadInput(
            f"script {name!r} made no model: neither a keras.Model in its global {MODEL_NAME!r} (found "
            f"{kind}), nor a SavedModel in ${OUTPUT_VARIABLE}/{SAVED_MODEL}"
        )


def train_rank(
    placement: Placement,
    channel: Channel,
    *,
    folders: Mapping[str, Path],
    options: Mapping[str, Any],
    examples: Mapping[str, Any] | None = None,
    splits_uri: str = "",
    storage_options: Mapping[str, Any] | None = None,
    champion: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Does the work of a rank.

    Args:
        placement: Placement of the rank.
        channel: Channel to the watching process.
        folders: ``examples``, the transformed examples, if any; ``output``, rank 0's folder; ``resumed``, the
            checkpoint to start from, if any; ``champion``, the folder of the model to continue from, if any.
        options: :class:`airflow_hops.core.training.options.TrainingOptions`, as JSON.
        examples: Properties of the examples.
        splits_uri: URI of the examples' splits, if they are not in their folder.
        storage_options: fsspec options of their store.
        champion: Fields of the model to continue from, if any.

    Returns:
        Entries of ``training.json``; ``value`` is a shipped function's result that is not a model. Only ``preempted``,
        the position, if all ranks have agreed to end. None for a rank that only serves the others.

    Raises:
        BadInput: the user's code makes no model, or ranks end with different weights.
    """
    began, began_at = time.monotonic(), time.time()
    values = TrainingOptions(**options)
    output = folders["output"]
    channel.alive("the start of its collectives")
    threads = _prepare_process(values, placement, output)
    kind, is_keras = group_of(values), trains_keras(values)
    group = None if kind is None else kind(placement, channel, values, threads)
    if group is not None and group.serve():
        return None
    _seed(values, placement)
    data = ExamplesProperties.from_dict(examples or {})
    size = 1 if group is not None and group.is_alone else placement.size
    rank = Rank(placement.rank, size, placement.local_rank, channel, group)
    source = _source(values, folders.get("examples"), data, splits_uri, storage_options or {})
    resumed_from = read_checkpoint(folders["resumed"]) if "resumed" in folders else None
    live = None if champion is None else Champion(**champion, path=folders.get("champion"))
    session = Session(rank, values, source, output, resumed_from, champion=live)
    signal.signal(signal.SIGUSR2, lambda *_: setattr(session, "is_stop_requested", True))
    signal.signal(signal.SIGTERM, session.preemption.notice)
    channel.send("started", host=placement.host)
    start_up = time.monotonic() - began
    channel.alive(f"the beginning of {program_name(values)}")
    with GpuMeter(get_gpus()) as meter:
        returned = _call(session)
    if session.preemption.is_agreed:  # also if the user's code caught the exception
        _leave_horovod()
        if group is not None:
            group.finish()
        return {"preempted": str(session.state.position)}
    training_seconds = time.monotonic() - began - start_up
    model = returned if (group is None or is_keras) and is_model(returned) else None
    framework = None if is_keras else framework_of(returned)
    made_model = model is not None or framework is not None
    if not made_model:
        check_outcome(values, returned, output, rank.number)
    if group is not None:
        checksum = group.check_weights(returned) if made_model or not is_keras else None
    else:
        checksum = None if model is None else _check(model, session)
    channel.send("alive", where="the end of training")
    _leave_horovod()
    export_began = time.monotonic()
    exported = None
    with while_busy(partial(channel.send, "alive", where="the end of training")):
        if values.export and framework is not None and group is not None:
            returned = group.unwrap(returned)
        if not values.export:
            pass
        elif framework is not None and rank.number == 0:
            exported = export_estimator(returned, framework, session)
            checksum = checksum or folder_checksum(output / exported["format"])
        elif model is not None:
            from airflow_hops.ml.training.stage.keras_export import export_keras

            exported = export_keras(model, session)
        if values.export and values.continue_from is not None and made_model and rank.number == 0:
            keep_trained(returned, framework, output)
    if group is not None:
        group.finish()
    return {
        "host": placement.host,
        "threads": threads,
        "gpus": meter.usage(),
        **_describe(session),
        "checksum": checksum,
        "is_continued": live is not None and live.is_continued,
        "model": exported if exported is not None else {} if made_model and not values.export else None,
        "value": None if made_model or values.script is not None else returned,
        "start_up_seconds": round(start_up, 3),
        "training_seconds": round(training_seconds, 3),
        "export_seconds": round(time.monotonic() - export_began, 3),
        "phase": _phase(placement, session, began_at).to_dict(),
    }


def _prepare_process(options: TrainingOptions, placement: Placement, output: Path) -> int:
    """Sets the variables that TensorFlow and Horovod read once, and joins the other ranks; returns the thread count."""
    os.environ[OUTPUT_VARIABLE] = str(output)
    threads = 1 if options.deterministic else max(1, len(os.sched_getaffinity(0)) // placement.local_size)
    if "tensorflow" in sys.modules:
        hide_triton()
    if not has_tensorflow(options):
        return threads
    import tensorflow as tf

    from airflow_hops.ml.training.keras.legacy import leave_unconverted, use_tf_keras

    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        use_tf_keras()
    if options.strategy == HOROVOD:
        from airflow_hops.ml.training.collectives import check_horovod, hvd

        check_horovod()
        leave_unconverted("horovod")
        hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    return threads


def _seed(options: TrainingOptions, placement: Placement) -> None:
    if not has_tensorflow(options):
        seed = options.seed + placement.rank
        random.seed(seed)
        np.random.seed(seed)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(seed)
        if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
            import keras

            keras.utils.set_random_seed(seed)
        return
    from airflow_hops.ml.training.rank_state import seed_rank

    seed_rank(options.seed, placement.rank)


def has_tensorflow(options: TrainingOptions) -> bool:
    """Returns whether ranks use TensorFlow; false for groups of other frameworks, and if it is not installed."""
    may_use = options.strategy == SINGLE or trains_keras(options)
    return may_use and importlib.util.find_spec("tensorflow") is not None


def _leave_horovod() -> None:
    horovod = sys.modules.get("horovod.tensorflow")
    if horovod is not None and horovod.is_initialized():
        horovod.shutdown()


def _source(
    options: TrainingOptions,
    folder: Path | None,
    data: ExamplesProperties,
    splits_uri: str,
    storage_options: Mapping[str, object],
) -> ExamplesSource:
    if folder is None:
        return ExamplesSource(target=None if data.label is None else data.target)
    if trains_keras(options) or (folder / "features.json").exists():
        specs = FeatureSpecs.read(folder / "features.json")
        return ExamplesSource(folder, specs.outputs, specs.target, splits_uri, storage_options)
    others = (data.label, *(data.more_labels or ()), data.key, data.time, data.weight)
    outputs = raw_specs(f"{splits_uri or folder}/{TRAIN}", others, storage_options=storage_options)
    return ExamplesSource(folder, outputs, None if data.label is None else data.target, splits_uri, storage_options)


def _describe(session: Session) -> dict[str, object]:
    guards, resumed_from, seconds = session.guards, session.resumed_from, session.seconds
    return {
        "rows": session.data.rows,
        "history": session.state.history,
        "epoch": session.state.epoch,
        "resumed_after_epoch": session.state.initial_epoch,
        "resumed_at_step": resumed_from.position.step if resumed_from else 0,
        "guard": {
            "checks": sum(guard.checks for guard in guards),
            "seconds": round(sum(guard.seconds for guard in guards), 4),
            "checksums": [checksum for guard in guards for checksum in guard.checksums],
            "rows": [rows for guard in guards for rows in guard.rows],
        },
        # Only context.fit and balanced batches count rows.
        "examples_per_second": round(session.rows_trained / seconds, 1) if session.rows_trained else None,
        # The share of the training time not spent on exchanging gradients and waiting for other ranks.
        "scaling_efficiency": round(max(0.0, 1 - session.exchange_seconds / seconds), 4) if seconds else None,
        "slowest": session.slowest,
        "shares": [
            {"fit": fit + 1, "from_epoch": epoch + 1, "rows": rows}
            for fit, epoch, rows in session.state.position.shares
        ],
    }


def _phase(placement: Placement, session: Session, began_at: float) -> Phase:
    """Returns the rank's time until now; its seconds of training are known if it has called ``context.fit``."""
    attributes: dict[str, str | float] = {"hops.rank": placement.rank, "host.name": placement.host}
    attributes |= {f"hops.rows.{split}": rows for split, rows in session.data.rows.items()}
    if session.seconds:
        waited, exchanged = session.waited_seconds, session.exchange_seconds
        parts = {"computing": session.seconds - waited - exchanged, "rows": waited, "exchange": exchanged}
        attributes |= {f"hops.seconds.{name}": round(value, 3) for name, value in parts.items()}
    return Phase("rank", began_at, time.time(), attributes)


def _call(session: Session) -> Any:
    """Runs the user's code, and waits for its last checkpoint even if it fails."""
    context = TrainContext(session)
    try:
        with made_current(context), temporary_folder("code") as folder:
            returned = run_program(session.options, context, folder)
    except PreemptedRank:
        returned = None
    except Exception as error:
        with contextlib.suppress(HopsError):
            session.close()
        failure = session.data.failure
        if failure is not None and failure is not error:
            raise failure from error
        raise
    session.close()
    return returned


def _check(model: object, session: Session) -> str:
    """Compares the ranks' models at the end."""
    from airflow_hops.ml.training.keras import check_weights, weights_checksum

    if session.options.strategy == SINGLE:
        return weights_checksum(model)
    features = None
    if session.source.target is not None:
        outputs = session.source.outputs
        names = outputs_taken(model, outputs)
        if all(name in outputs for name in names):
            features = output_specs({name: outputs[name] for name in names})
    return check_weights(model, "at the end of training", features)
