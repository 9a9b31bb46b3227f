"""The step: trains on transformed examples, from the last checkpoint of an earlier try, and publishes the model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from airflow_hops.artifacts import Artifact, BadInput, HopsError, Manifest, RowCounts
from airflow_hops.hops.reader import row_count, split_names
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.feature_specs import FeatureSpecs
from airflow_hops.runtime.gang.elastic import Elastic
from airflow_hops.runtime.gang.where import Where, rank_launcher
from airflow_hops.runtime.tensorboard import serving
from airflow_hops.runtime.tracking import TrainingRun
from airflow_hops.runtime.train.checkpoint_state import CheckpointState
from airflow_hops.runtime.train.messages import Listener
from airflow_hops.runtime.train.outcome import SAVED_MODEL
from airflow_hops.runtime.train.program import Program
from airflow_hops.runtime.train.strategies import HOROVOD, Roles
from airflow_hops.runtime.train.training import Training, train_model
from airflow_hops.runtime.transform_graph import SIGNATURE

TRAIN_SPLIT = "train"


def run(
    context: StepContext,
    *,
    train: str | None = None,
    script: str | None = None,
    script_args: Sequence[str] = (),
    shipped: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    params: dict[str, Any] | None = None,
    np: int = 2,
    min_np: int | None = None,
    max_np: int | None = None,
    where: Where | None = None,
    seed: int | None = None,
    deterministic: bool = False,
    checkpoint_every_steps: int = 0,
    guard_every_steps: int | None = None,
    strategy: str = HOROVOD,
    parameter_servers: int = 0,
    stall_timeout_s: float = 300.0,
    timeline: bool = False,
    tensorboard: bool = False,
) -> Any:
    """The step: trains on the artifact in the role ``examples``, from the last checkpoint of an earlier try.

    Args:
        context: The step's.
        train: ``module:function`` of the user.
        script: Instead, a Python file beside the DAG that runs as ``__main__``.
        script_args: The script's arguments.
        shipped: Instead, a function's source: :func:`~airflow_hops.runtime.function.call_shipped`.
        env: Variables for all ranks.
        params: Hyperparameters.
        np: Number of ranks; where they are elastic, with how many they begin.
        min_np: Ranks that may be left for the training to go on; None: ``np``, unless ``max_np`` is given.
        max_np: Ranks up to which others take the places of those that were lost; None: ``np``.
        where: Where they run: see :func:`airflow_hops.runtime.gang.where.rank_launcher`; by default what the spec says
            under the service ``ranks``.
        seed: Seed of weights and of the order of rows; None means 0.
        deterministic: Whether the same training gives the same bits: one thread a rank, operations to match.
        checkpoint_every_steps: Steps between checkpoints within an epoch; 0 for none.
        guard_every_steps: Steps between two comparisons of the ranks' weights; 0 for none, None for the default.
        strategy: How the ranks work together: one of :data:`airflow_hops.runtime.train.strategies.STRATEGIES`.
        parameter_servers: How many further ranks hold variables.
        stall_timeout_s: Seconds without a sign of life from a rank after which the gang is ended.
        timeline: Whether Horovod writes its timeline.
        tensorboard: Whether to serve a TensorBoard for as long as the training runs.

    Returns:
        The model artifact; or what a shipped function returned that is no model.

    Raises:
        BadInput: the function, the examples or the hyperparameters cannot be used; a retry would fail again.
        HopsError: a rank died or stalled.
    """
    launcher = rank_launcher(where or json.loads(context.spec.services.get("ranks", "null")), context)
    elastic = None if min_np is None and max_np is None else Elastic(np if min_np is None else min_np, max_np)
    roles = Roles.of_training(strategy, np, parameter_servers)
    if elastic is not None and strategy != HOROVOD:
        raise BadInput(f"min_np and max_np are for Horovod's ranks, found strategy {strategy!r}")
    # Too few slots are found before anything is read.
    _ = launcher.place(roles.ranks) if elastic is None else elastic.place(launcher, np)
    program = Program(train, script, tuple(script_args), shipped)
    examples = context.input("examples") if context.has_input("examples") else None
    manifest = None if examples is None else context.store.manifest(examples.uri)
    # Ranks read the splits of a remote store by themselves.
    splits = () if manifest is None else tuple(manifest.rows)
    folder = None if examples is None else context.store.local(examples, without=splits)
    splits_uri = "" if examples is None or context.store.is_local else examples.uri
    if folder is not None and manifest is not None:
        storage_options = context.store.storage_options if splits_uri else {}
        _check_examples(splits_uri or str(folder), manifest, max(np, max_np or np), storage_options)
    state = CheckpointState.of(context.spec, context.store)
    with context.output() as writer:
        resume_from = state.fetch(context.scratch / "resumed")
        if resume_from is not None:
            context.progress(0.0, f"resuming {resume_from.position}, from the checkpoint of an earlier try")
        training = Training(
            program=program,
            examples=folder,
            output=writer.path,
            splits_uri=splits_uri,
            storage_options=context.store.storage_options if splits_uri else {},
            params=params or {},
            ranks=roles.ranks,
            elastic=elastic,
            seed=seed or 0,
            deterministic=deterministic,
            checkpoint_every_steps=checkpoint_every_steps,
            guard_every_steps=guard_every_steps,
            stall_timeout_s=stall_timeout_s,
            resume_from=resume_from.path if resume_from else None,
            launcher=launcher,
            code_paths=context.spec.code_paths,
            environment=env or {},
            strategy=strategy,
            parameter_servers=parameter_servers,
            timeline=timeline,
        )
        tracking = TrainingRun(context.spec.services.get("tracking_uri", ""), state.uri, context.spec.producer)
        summary = _train(context, training, state, tracking, examples, manifest, tensorboard)
        if not (writer.path / SAVED_MODEL).exists():
            tracking.finish(None, summary, program.sources(training.code_paths))
            state.clear()
            return summary["value"]
        artifact = writer.commit(
            rows=_row_counts(summary, manifest),
            metrics=_metrics(summary),
            properties=_properties(training, summary, manifest),
        )
    tracking.finish(artifact, summary, program.sources(training.code_paths))
    state.clear()
    return artifact


def _train(
    context: StepContext,
    training: Training,
    state: CheckpointState,
    tracking: TrainingRun,
    examples: Artifact | None,
    manifest: Manifest | None,
    tensorboard: bool,
) -> dict[str, Any]:
    """Trains, and says of a failure what of it is kept."""
    given = {
        "train": training.program.name,
        "np": training.ranks,
        "seed": training.seed,
        "deterministic": training.deterministic,
        **training.params,
    }
    listener = Listener(
        context,
        state,
        training.output / "checkpoints",
        tracking,
        lambda: tracking.begin(given, examples, manifest, training.code_paths),
    )
    try:
        with serving(training.output / "tensorboard") if tensorboard else nullcontext():
            summary = train_model(training, on_message=listener)
        listener.finish()
        return summary
    except BaseException as error:
        if isinstance(error, HopsError):
            with suppress(HopsError):
                listener.finish()
        tracking.fail()
        kept = state.latest() if isinstance(error, HopsError) else None
        if kept is None:
            raise
        raise type(error)(f"{error}\nThe checkpoint {kept} is kept in {state.uri}; a retry resumes from it.") from error


def _properties(training: Training, summary: Mapping[str, Any], manifest: Manifest | None) -> dict[str, Any]:
    """What downstream needs to know of the model."""
    own = {
        "signature": SIGNATURE,
        "train": training.program.name,
        "ranks": training.ranks,
        "synchronized": summary["synchronized"],
    }
    if training.examples is None or manifest is None:
        return own
    return {
        "features": list(FeatureSpecs.read(training.examples / "features.json").features),
        **{name: manifest.properties.get(name) for name in ("label", "key", "time", "window")},
        "statistics": _input_of(manifest, "statistics", "uri"),
        "statistics_fingerprint": _input_of(manifest, "statistics", "fingerprint"),
        "schema": _input_of(manifest, "schema", "uri"),
        **own,
    }


def _check_examples(root: str, manifest: Manifest, ranks: int, storage_options: Mapping[str, Any]) -> None:
    """Compares the files' footers with the manifest: better now than after an epoch."""
    there = split_names(root, storage_options=storage_options)
    for split, counts in manifest.rows.items():
        rows = row_count(f"{root}/{split}", storage_options=storage_options) if split in there else 0
        if split == TRAIN_SPLIT and rows < ranks:
            raise BadInput(
                f"{root}: split {split!r} holds {rows} rows, fewer than the {ranks} ranks; give it more rows, or "
                "lower np"
            )
        if rows != counts.rows_out:
            raise BadInput(
                f"{root}: split {split!r} holds {rows} rows, but its manifest says {counts.rows_out}; files were "
                "changed or lost"
            )


def _row_counts(summary: Mapping[str, Any], manifest: Manifest | None) -> dict[str, RowCounts]:
    """Rows that the transform had written, and rows that the ranks' shards held."""
    counts = {}
    for split, rows in summary["rows"].items():
        written = manifest.rows.get(split) if manifest is not None else None
        counts[split] = RowCounts(written.rows_out if written else rows, rows)
    return counts


def _metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """The last epoch's metrics, as ``train_<name>`` and ``eval_<name>``; what is no number, JSON does not have."""
    last = summary["epochs"][-1] if summary["epochs"] else {}
    metrics = {
        f"eval_{name.removeprefix('val_')}" if name.startswith("val_") else f"train_{name}": value
        for name, value in last.items()
        if name != "seconds" and math.isfinite(value)
    }
    efficiency = summary["scaling_efficiency"]
    return {
        **metrics,
        "examples_per_second": summary["examples_per_second"],
        **({} if efficiency is None else {"scaling_efficiency": efficiency}),
        "seconds": summary["seconds"]["total"],
    }


def _input_of(manifest: Manifest, role: str, attribute: str) -> str | None:
    given = manifest.inputs.get(role, ())
    return getattr(given[0], attribute) if given else None
